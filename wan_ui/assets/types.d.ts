// What Gradio and the browser know by name. For the type checker only: the studio does not serve this file.

/** What Gradio gives to the script of an HTML component, when it draws the component first. */
interface GradioComponent {
  element: HTMLElement;
  /** The component's properties; a new value is drawn at once. */
  props: { value: string };
  /** Calls the handlers of one of the component's events. */
  trigger(event: string, data?: object): void;
  upload(file: File): Promise<{ path: string; url: string }>;
  /** Calls back after the server has changed this property and it is drawn. */
  watch(property: string, changed: () => void): void;
}

interface Window {
  studio: import('./studio.js').Studio;
}
