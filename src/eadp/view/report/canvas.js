// One canvas a method: the picture with its crops or frames, and over each cell what the toggles ask for.

const EDGE = css(colour(1));
const IMAGES = DATA.images.map((source) => Object.assign(new Image(), { src: source }));

class Board {
  constructor(take, number) {
    this.take = take;
    this.canvas = element("canvas", { tabindex: "0", role: "application", "data-take": number });
    this.pen = this.canvas.getContext("2d");
  }

  // view: { picks, map, kept, order, word, token }
  draw(view) {
    const width = this.canvas.clientWidth || 300, height = width * DATA.sheet.height, sharp = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * sharp);
    this.canvas.height = Math.round(height * sharp);
    this.pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    Object.assign(this, { width, sharp });
    for (const place of DATA.sheet.places) this.drawPlace(place, view);
    if (view.token !== null) this.drawLink(view);
  }

  drawPlace(place, view) {
    const { pen, width, take } = this, block = BLOCKS[place.block];
    const left = place.left * width, top = place.top * width, wide = place.width * width, high = place.height * width;
    if (place.image === null) {
      pen.fillStyle = "#969696";
      pen.fillRect(left, top, wide, high);
    } else {
      const image = IMAGES[place.image], [y0, x0, y1, x1] = place.source;
      const [w, h] = [image.naturalWidth, image.naturalHeight];
      pen.drawImage(image, x0 * w, y0 * h, (x1 - x0) * w, (y1 - y0) * h, left, top, wide, high);
    }
    const shown = view.word !== null ? WORDS[view.word].levels : view.map ? take.levels : null;
    let quota = 0;
    for (let token = block.start; token < block.end; token++) {
      const [x, y, w, h] = this.cell(token), kept = isKept(take, token, view.picks);
      quota += kept ? 1 : 0;
      if (shown) {
        pen.fillStyle = css(colour(shown[token]), 0.85);
        pen.fillRect(x, y, w, h);
      }
      if (view.kept && !kept) {
        pen.fillStyle = shown ? "rgba(0,0,0,.45)" : "rgba(0,0,0,.72)";
        pen.fillRect(x, y, w, h);
      }
      if (kept && (view.kept || view.order)) this.drawKept(token, x, y, w, h, view);
    }
    if (place.caption) {
      pen.font = `${Math.max(9, Math.min(13, 0.16 * wide))}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.fillStyle = getComputedStyle(document.body).color;
      pen.fillText(wide > 90 ? `${place.caption}: ${quota}` : `${quota}`, left + wide / 2, top + high + 0.2 * wide + 1);
    }
  }

  drawKept(token, x, y, w, h, view) {
    const { pen, take } = this;
    if (view.order && take.ordered) {
      const rgb = colour(1 - take.rank[token] / Math.max(1, take.order.length - 1));
      pen.fillStyle = css(rgb, 0.9);
      pen.fillRect(x, y, w, h);
      if (w >= 12) {
        pen.font = `${Math.min(0.55 * h, (1.5 * w) / String(take.order.length).length)}px system-ui, sans-serif`;
        pen.textAlign = "center";
        pen.textBaseline = "middle";
        pen.fillStyle = inkOn(rgb);
        pen.fillText(take.rank[token] + 1, x + w / 2, y + h / 2 + 0.5);
        pen.textBaseline = "alphabetic";
      }
    }
    if (w < 7) return;
    pen.strokeStyle = EDGE;
    pen.lineWidth = 1.25;
    pen.strokeRect(x + 0.6, y + 0.6, w - 1.2, h - 1.2);
  }

  drawLink({ token, picks }) {
    const { pen } = this, found = representative(this.take, token, picks);
    this.frame(token, "#fff");
    if (!found || found.token === token) return;
    this.frame(found.token, "#fff");
    const [x0, y0, w0, h0] = this.cell(token), [x1, y1, w1, h1] = this.cell(found.token);
    for (const [style, line] of [["#000", 4], ["#fff", 2]]) {
      pen.strokeStyle = style;
      pen.lineWidth = line;
      pen.beginPath();
      pen.moveTo(x0 + w0 / 2, y0 + h0 / 2);
      pen.lineTo(x1 + w1 / 2, y1 + h1 / 2);
      pen.stroke();
    }
  }

  frame(token, style) {
    const [x, y, w, h] = this.cell(token);
    for (const [ink, line] of [["#000", 5], [style, 2.5]]) {
      this.pen.strokeStyle = ink;
      this.pen.lineWidth = line;
      this.pen.strokeRect(x, y, w, h);
    }
  }

  // Left, top, width, height of a token, on whole pixels of the screen so that no seams show.
  cell(token) {
    const { block, row, column } = whereIs(token), place = placeOf(block);
    const whole = (share) => Math.round(share * this.width * this.sharp) / this.sharp;
    const [left, right] = [column, column + 1].map((edge) => whole(place.left + (edge * place.width) / block.columns));
    const [top, bottom] = [row, row + 1].map((edge) => whole(place.top + (edge * place.height) / block.rows));
    return [left, top, right - left, bottom - top];
  }

  // The token under a pointer, or null.
  tokenAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.width;
    for (const place of DATA.sheet.places) {
      const across = (x - place.left) / place.width, down = (y - place.top) / place.height;
      if (across < 0 || across >= 1 || down < 0 || down >= 1) continue;
      const block = BLOCKS[place.block];
      return block.start + Math.floor(down * block.rows) * block.columns + Math.floor(across * block.columns);
    }
    return null;
  }
}
