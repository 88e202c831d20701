/** Builds the module of the widget in the cell: one file without imports, and its style sheet. */
import { rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = new URL(".", import.meta.url);
const target = fileURLToPath(new URL("../accel_nb/jupyter/static/", folder));

await rm(target, { force: true, recursive: true });
await build({
  entryPoints: { run_view: fileURLToPath(new URL("src/cellWidget.tsx", folder)) },
  outdir: target,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
});
await build({
  entryPoints: { run_view: fileURLToPath(new URL("style/run.css", folder)) },
  outdir: target,
  bundle: true,
  minify: true,
});
