// Search in a site that is opened as files: browsers start no worker from a file, so the worker's script runs in a frame.
// Material knows it by the name IFrameWorker. Of a site that is served nothing here is used.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      inner.document.open();
      inner.document.write("<html><body></body></html>");
      inner.document.close();
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        if (this.onmessage) this.onmessage(event);
        this.dispatchEvent(event);
      };
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          inner.document.body.appendChild(script);
        });
      inner.importScripts = (...sources) => sources.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      this.frame = frame;
      this.ready = load(new URL(url, location.href).href);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
