import { defineConfig } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

// One file without a single outside address: it is served by `traindoctor ui` and is every report.
export default defineConfig({
  plugins: [viteSingleFile({ removeViteModuleLoader: true })],
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "inline" },
  build: {
    outDir: "../src/traindoctor/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8765" } },
});
