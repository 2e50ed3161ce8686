// A browser refuses to start a worker from a file, and the search of the site is a worker. So on a page that is opened
// without a server, a worker is a hidden frame that runs the same script. Both builders of the site work with it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    onmessage = null;
    onerror = null;
    #frame = document.createElement("iframe");
    #started;

    constructor(url) {
      super();
      this.#frame.hidden = true;
      this.#started = new Promise((resolve, reject) => {
        this.#frame.onload = () => {
          const inside = this.#frame.contentWindow;
          inside.postMessage = (data) => this.#tell("message", { data });
          const script = inside.document.createElement("script");
          script.src = new URL(url, document.baseURI);
          script.onload = () => resolve(inside);
          script.onerror = reject;
          inside.document.body.append(script);
        };
      });
      this.#started.catch(() => this.#tell("error", {}));
      const insert = () => document.body.append(this.#frame);
      document.body ? insert() : addEventListener("DOMContentLoaded", insert, { once: true });
    }

    postMessage(data) {
      // A message that comes before the script waits for it.
      this.#started.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })), () => {});
    }

    terminate() {
      this.#frame.remove();
    }

    #tell(kind, content) {
      const event = new MessageEvent(kind, content);
      this.dispatchEvent(event);
      this[`on${kind}`]?.(event);
    }
  };
}
