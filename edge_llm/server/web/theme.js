// Before the first frame: the colours that were chosen here, so that nothing flashes.
try { document.documentElement.dataset.theme = localStorage.getItem("edge-llm:theme") ?? "auto"; } catch { /* no storage here */ }
