// Sends presses of buttons to the component of `wan_ui/components/buttons.py`, which has one Gradio event for each group.

/** @type {GradioComponent | null} */
let receiver = null;
/** @type {readonly string[]} */
let events = [];

/** @param {GradioComponent} component @param {readonly string[]} names */
export const startActions = (component, names) => {
  receiver = component;
  events = names;
};

export const canAct = () => receiver !== null;

/**
 * Sends the press of a button of this group. Ignored before the page is complete, and for a group without a handler.
 * @param {string} group @param {string} what @param {{job?: string, value?: string}} [data]
 */
export const act = (group, what, data = {}) => {
  if (events.includes(`act_${group}`)) receiver?.trigger(`act_${group}`, { what, ...data });
};

/** @param {string} group @param {string} what @param {File} file */
const send = async (group, what, file) => {
  if (receiver) act(group, what, { value: (await receiver.upload(file)).path });
};

/** Uploads a file that was dropped on the page. @param {File} file */
export const dropFile = file => send('drop', 'drop', file);

/** Uploads a project file and imports it. @param {File} file */
export const importProject = file => send('project', 'import', file);
