// Reads [{mermaid, dot}] from standard input; writes for each the labels that Mermaid and Graphviz show.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const from = createRequire(`${process.argv[2]}/`);
const load = (name) => import(pathToFileURL(from.resolve(name)));

const viz = await (await load('@viz-js/viz')).instance(); // before there is a document
const { JSDOM } = (await load('jsdom')).default;
const { window } = new JSDOM('<!doctype html><body></body>', { pretendToBeVisual: true });
globalThis.window = window;
for (const name of ['document', 'Element', 'SVGElement', 'HTMLElement', 'Node', 'NodeList', 'DOMParser', 'XMLSerializer', 'CSSStyleSheet'])
  globalThis[name] = window[name];
// jsdom has no layout; the labels do not depend on it.
window.SVGElement.prototype.getBBox = () => ({ x: 0, y: 0, width: 40, height: 20 });
window.SVGElement.prototype.getComputedTextLength = () => 40;

const { default: mermaid } = await load('mermaid');
mermaid.initialize({ startOnLoad: false, securityLevel: 'strict' });

async function labels(text) {
  const { svg } = await mermaid.render('graph', text);
  const page = new window.DOMParser().parseFromString(svg, 'text/html');
  const texts = (kind) => [...page.querySelectorAll(kind)].map((label) => label.textContent);
  return { states: texts('.node .nodeLabel'), edges: texts('.edgeLabel') };
}

function written(svg, kind) {
  const page = new window.DOMParser().parseFromString(svg, 'text/html');
  return [...page.querySelectorAll(kind)].map((part) => [...part.querySelectorAll('text')].map((text) => text.textContent));
}

const shown = [];
for (const { mermaid: text, dot } of JSON.parse(readFileSync(0, 'utf8'))) {
  const svg = viz.renderString(dot, { format: 'svg' });
  shown.push({ mermaid: await labels(text), dot: { states: written(svg, '.node'), edges: written(svg, '.edge') } });
}
process.stdout.write(JSON.stringify(shown));
process.exit(0);
