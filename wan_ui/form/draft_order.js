// The order of instant drafts: which requests are answered, and which drafts may be shown. An older draft never follows a newer one.

export const createDraftOrder = () => {
  let sent = 0; // the number of the newest request
  let answered = 0;
  let shown = 0; // the number of the newest draft that was shown or ignored
  let isChanged = false; // whether the form has changed since the newest request

  return {
    /** Returns the number of a new request. */
    next: () => {
      isChanged = false;
      sent += 1;
      return sent;
    },
    /** Notes that the form has changed since the newest request. */
    markChanged: () => {
      isChanged = true;
    },
    isNewest: (/** @type {number} */ number) => number === sent,
    markAnswered: (/** @type {number} */ number) => {
      answered = Math.max(answered, number);
    },
    /** Returns whether the newest state of the form has no answer yet. */
    isUnanswered: () => isChanged || answered < sent,
    /** Returns whether draft `number` may be shown now, and notes that it is shown. @param {number} number */
    mayShow: number => {
      if (number <= shown) return false;
      shown = number;
      return true;
    },
    /** Ignores the drafts of all requests so far. */
    ignoreEarlier: () => {
      isChanged = false;
      shown = answered = sent;
    },
  };
};
