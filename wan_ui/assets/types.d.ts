// Types of objects of Gradio and the browser, for the type checker only. The studio does not serve this file.

/** The argument of an HTML component's script, which runs when Gradio first renders the component. */
interface GradioComponent {
  element: HTMLElement;
  /** The component's properties. A new value is rendered immediately. */
  props: { value: string };
  /** Calls the handlers of one of the component's events. */
  trigger(event: string, data?: object): void;
  upload(file: File): Promise<{ path: string; url: string }>;
  /** Calls `changed` after the server changed this property and Gradio rendered it. */
  watch(property: string, changed: () => void): void;
}

/** The helpers of a view whose script calls the server. */
type ViewClient = ReturnType<typeof import('../components/http.js').createViewClient>;

/** A field of a form. */
type Field = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;

interface Window {
  studio: import('./studio.js').Studio;
}
