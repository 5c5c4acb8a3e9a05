import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { recall, remember } from "./memory";

/** Which panels a reader has opened: the same ones are open on every run, and after a reload. */
export function useFolds() {
  const [open, setOpen] = useState<string[]>(() => recall<string[]>("open", []));
  const keep = (ids: string[]) => {
    setOpen(ids);
    remember("open", ids);
  };
  return {
    isOpen: (id: string) => open.includes(id),
    toggle: (id: string) => keep(open.includes(id) ? open.filter((one) => one !== id) : [...open, id]),
    show: (id: string) => !open.includes(id) && keep([...open, id]),
    all: (ids: string[], on: boolean) => keep([...open.filter((one) => !ids.includes(one)), ...(on ? ids : [])]),
  };
}

export type Folds = ReturnType<typeof useFolds>;

interface Props {
  id: string;
  title: string;
  /** What it would show, while it is closed. */
  about?: string;
  folds: Folds;
  wide?: boolean;
  children: () => ComponentChildren;
}

/** A panel that is a line until it is opened; its content is made only then. */
export function Fold({ id, title, about, folds, wide, children }: Props) {
  const open = folds.isOpen(id);
  return (
    <section class={`fold panel ${open ? "open" : ""} ${wide && open ? "wide" : ""}`} id={`fold-${id}`}>
      <h3>
        <button type="button" aria-expanded={open} aria-controls={`inside-${id}`} onClick={() => folds.toggle(id)}>
          <span class="mark" aria-hidden="true" />
          <span class="what">{title}</span>
          {!open && about && <span class="hint">{about}</span>}
        </button>
      </h3>
      <div id={`inside-${id}`} class="inside" hidden={!open}>
        {open && children()}
      </div>
    </section>
  );
}
