/**
 * Builds what notebooks show.
 *
 * src/cellWidget.tsx, style/run.css -> accel_nb/jupyter/static/   one module without imports, and its style sheet
 * src/index.ts -> lib/index.js, schema, style -> accel_nb/labextension/   the prebuilt extension, by JupyterLab's builder
 */
import { execFile } from "node:child_process";
import { rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { build } from "esbuild";

const folder = fileURLToPath(new URL(".", import.meta.url));
const project = dirname(dirname(join(folder, "x")));

/** What JupyterLab itself brings. */
const BROUGHT = ["@jupyterlab/*", "@lumino/*"];
const PREACT = { jsx: "automatic", jsxImportSource: "preact" };

await Promise.all([buildCellWidget(join(project, "accel_nb/jupyter/static")), buildExtension()]);

async function buildCellWidget(target) {
  await rm(target, { force: true, recursive: true });
  const shared = { outdir: target, bundle: true, minify: true };
  await build({
    ...shared,
    ...PREACT,
    entryPoints: { run_view: join(folder, "src/cellWidget.tsx") },
    format: "esm",
    target: "es2022",
    legalComments: "eof",
  });
  await build({ ...shared, entryPoints: { run_view: join(folder, "style/run.css") } });
}

async function buildExtension() {
  const target = join(folder, "lib");
  await rm(target, { force: true, recursive: true });
  await build({
    ...PREACT,
    entryPoints: [join(folder, "src/index.ts")],
    outdir: target,
    bundle: true,
    external: BROUGHT,
    format: "esm",
    target: "es2022",
    loader: { ".svg": "text" },
    legalComments: "eof",
  });
  // What `jupyter-builder build` runs; that one needs Python.
  const { resolve } = createRequire(import.meta.url);
  const builder = join(dirname(resolve("@jupyter/builder")), "build-labextension.js");
  const core = resolve("@jupyterlab/core-meta/core.package.json");
  await run(process.execPath, [builder, "--core-package-file", core, project]);
}

/** Says what it has printed only when it fails. */
async function run(program, args) {
  try {
    await promisify(execFile)(program, args, { cwd: project });
  } catch (error) {
    console.error(`${error.stdout}\n${error.stderr}`);
    throw error;
  }
}
