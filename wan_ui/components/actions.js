// Sends presses of buttons to the component of `wan_ui/components/buttons.py`, which has one Gradio event for each group.

let receiver = /** @type {GradioComponent | null} */ (null);
/** @type {readonly string[]} */
let events = [];

/** @param {GradioComponent} component @param {readonly string[]} names */
export const startActions = (component, names) => {
  receiver = component;
  events = names;
};

export const canAct = () => receiver !== null;

/** Sends the press of a button of this group. Ignored before the page is complete, and for a group without a handler.
 * @param {string} group @param {string} what @param {{job?: string, value?: string}} [data] */
export const act = (group, what, data = {}) => {
  if (events.includes(`act_${group}`)) receiver?.trigger(`act_${group}`, { what, ...data });
};

/** Uploads a file and sends its path. @param {string} group @param {string} what @param {File} file */
export const sendFile = async (group, what, file) => {
  if (receiver) act(group, what, { value: (await receiver.upload(file)).path });
};
