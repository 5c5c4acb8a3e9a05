import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import { Compare } from "./Compare";
import { RunList, useRuns } from "./RunList";
import { RunPage } from "./RunPage";
import { openSource, type Source } from "./source";
import "./style.css";
import { useTheme, type Theme } from "./theme";

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const follow = () => setRoute(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function App({ source }: { source: Source }) {
  const [theme, toggle] = useTheme();
  const route = useRoute();
  return (
    <>
      <a class="skip" href="#verdict" onClick={(e) => { e.preventDefault(); document.querySelector<HTMLElement>("main")?.focus(); }}>
        Skip to the content
      </a>
      <nav class="top">
        {source.live ? <a class="brand" href="#/">traindoctor</a> : <span class="brand">traindoctor</span>}
        {source.live && route.length > 0 && <a href="#/">all runs</a>}
        <span class="space" />
        <button type="button" class="quiet" onClick={toggle} aria-label={`Switch to ${theme === "dark" ? "light" : "dark"} colours`}>
          {theme === "dark" ? "light" : "dark"}
        </button>
      </nav>
      {source.live ? <Live source={source} route={route} theme={theme} /> : <RunPage source={source} name="" theme={theme} />}
      <footer>{source.live ? "Served from this machine; nothing leaves it." : "This file stands alone; nothing is loaded from elsewhere."}</footer>
    </>
  );
}

function Live({ source, route, theme }: { source: Source; route: string[]; theme: Theme }) {
  const [kind, ...rest] = route;
  const title = kind === "run" ? `${rest[0]} · traindoctor` : kind === "compare" ? "compare · traindoctor" : "traindoctor";
  useEffect(() => void (document.title = title), [title]);
  if (kind === "run" && rest.length) return <RunPage key={rest[0]} source={source} name={rest[0]} theme={theme} />;
  if (kind === "compare" && rest.length) return <Compare source={source} names={rest} theme={theme} />;
  return <Start source={source} theme={theme} />;
}

/** A folder that is itself a run needs no list of one. */
function Start({ source, theme }: { source: Source; theme: Theme }) {
  const { list } = useRuns(source);
  if (list?.runs.length === 1 && list.runs[0].name === list.root) return <RunPage source={source} name={list.root} theme={theme} />;
  return <RunList source={source} />;
}

function Root() {
  const source = useMemo(openSource, []);
  return <App source={source} />;
}

render(<Root />, document.getElementById("app")!);
