// One canvas per method: the image with its crops or frames, and the selected layers over each cell.

const OUTLINE = toCss(colourAt(1));
const IMAGES = DATA.images.map((source) => Object.assign(new Image(), { src: source }));

class MethodCanvas {
  constructor(method, number) {
    this.method = method;
    this.canvas = element("canvas", { tabindex: "0", role: "application", "data-method": number });
    this.context = this.canvas.getContext("2d");
  }

  // view: { picks, map, kept, order, word, token }
  draw(view) {
    const width = this.canvas.clientWidth || 300, height = width * DATA.layout.height, pixelRatio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * pixelRatio);
    this.canvas.height = Math.round(height * pixelRatio);
    this.context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
    Object.assign(this, { width, pixelRatio });
    for (const placed of DATA.layout.blocks) this.drawBlock(placed, view);
    if (view.token !== null) this.drawLink(view);
  }

  drawBlock(placed, view) {
    const { context, width, method } = this, block = BLOCKS[placed.block];
    const left = placed.left * width, top = placed.top * width, blockWidth = placed.width * width, blockHeight = placed.height * width;
    if (placed.image === null) {
      context.fillStyle = "#969696";
      context.fillRect(left, top, blockWidth, blockHeight);
    } else {
      const image = IMAGES[placed.image], [y0, x0, y1, x1] = placed.source;
      const [w, h] = [image.naturalWidth, image.naturalHeight];
      context.drawImage(image, x0 * w, y0 * h, (x1 - x0) * w, (y1 - y0) * h, left, top, blockWidth, blockHeight);
    }
    const levels = view.word !== null ? WORDS[view.word].levels : view.map ? method.levels : null;
    let quota = 0;
    for (let token = block.start; token < block.end; token++) {
      const [x, y, w, h] = this.cell(token), kept = isKept(method, token, view.picks);
      quota += kept ? 1 : 0;
      if (levels) {
        context.fillStyle = toCss(colourAt(levels[token]), 0.85);
        context.fillRect(x, y, w, h);
      }
      if (view.kept && !kept) {
        context.fillStyle = levels ? "rgba(0,0,0,.45)" : "rgba(0,0,0,.72)";
        context.fillRect(x, y, w, h);
      }
      if (kept && (view.kept || view.order)) this.drawKept(token, x, y, w, h, view);
    }
    if (placed.caption) {
      context.font = `${Math.max(9, Math.min(13, 0.16 * blockWidth))}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.fillStyle = getComputedStyle(document.body).color;
      context.fillText(blockWidth > 90 ? `${placed.caption}: ${quota}` : `${quota}`, left + blockWidth / 2, top + blockHeight + 0.2 * blockWidth + 1);
    }
  }

  drawKept(token, x, y, w, h, view) {
    const { context, method } = this;
    if (view.order && method.ordered) {
      const rgb = colourAt(1 - method.rank[token] / Math.max(1, method.order.length - 1));
      context.fillStyle = toCss(rgb, 0.9);
      context.fillRect(x, y, w, h);
      if (w >= 12) {
        context.font = `${Math.min(0.55 * h, (1.5 * w) / String(method.order.length).length)}px system-ui, sans-serif`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillStyle = textColourOn(rgb);
        context.fillText(method.rank[token] + 1, x + w / 2, y + h / 2 + 0.5);
        context.textBaseline = "alphabetic";
      }
    }
    if (w < 7) return;
    context.strokeStyle = OUTLINE;
    context.lineWidth = 1.25;
    context.strokeRect(x + 0.6, y + 0.6, w - 1.2, h - 1.2);
  }

  drawLink({ token, picks }) {
    const { context } = this, best = representative(this.method, token, picks);
    this.outline(token, "#fff");
    if (!best || best.token === token) return;
    this.outline(best.token, "#fff");
    const [x0, y0, w0, h0] = this.cell(token), [x1, y1, w1, h1] = this.cell(best.token);
    for (const [style, line] of [["#000", 4], ["#fff", 2]]) {
      context.strokeStyle = style;
      context.lineWidth = line;
      context.beginPath();
      context.moveTo(x0 + w0 / 2, y0 + h0 / 2);
      context.lineTo(x1 + w1 / 2, y1 + h1 / 2);
      context.stroke();
    }
  }

  outline(token, style) {
    const [x, y, w, h] = this.cell(token);
    for (const [colour, line] of [["#000", 5], [style, 2.5]]) {
      this.context.strokeStyle = colour;
      this.context.lineWidth = line;
      this.context.strokeRect(x, y, w, h);
    }
  }

  // Left, top, width and height of a token, rounded to screen pixels so that no seams show.
  cell(token) {
    const { block, row, column } = locate(token), placed = placementOf(block);
    const snap = (share) => Math.round(share * this.width * this.pixelRatio) / this.pixelRatio;
    const [left, right] = [column, column + 1].map((edge) => snap(placed.left + (edge * placed.width) / block.columns));
    const [top, bottom] = [row, row + 1].map((edge) => snap(placed.top + (edge * placed.height) / block.rows));
    return [left, top, right - left, bottom - top];
  }

  // The token under the pointer, or null.
  tokenAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.width;
    for (const placed of DATA.layout.blocks) {
      const across = (x - placed.left) / placed.width, down = (y - placed.top) / placed.height;
      if (across < 0 || across >= 1 || down < 0 || down >= 1) continue;
      const block = BLOCKS[placed.block];
      return block.start + Math.floor(down * block.rows) * block.columns + Math.floor(across * block.columns);
    }
    return null;
  }
}
