//! Draws the tables of `docs/design/handover.md` from the code. When one differs, the test says
//! so; `SHUNT_DRAW=1 cargo test -p shunt-stream --test tables` writes it.

use shunt_stream::{End, Event, Receiving, Sending, Side, TRANSITIONS};
use std::fmt::{Debug, Write};
use std::path::Path;

#[test]
fn the_table_of_the_end_word_is_the_codes() {
    let mut table = String::from("| from | to | by | when |\n|---|---|---|---|\n");
    for row in &TRANSITIONS {
        let by = if row.by == Side::Writer { "writer" } else { "reader" };
        let (from, to) = (name(row.from), name(row.to));
        writeln!(table, "| `{from}` | `{to}` | {by} | {} |", row.when).unwrap();
    }
    compare("end word", &table);
}

#[test]
fn the_table_of_the_sending_half_is_the_codes() {
    compare("sending half", &half(&Sending::ALL, Sending::after));
}

#[test]
fn the_table_of_the_receiving_half_is_the_codes() {
    compare("receiving half", &half(&Receiving::ALL, Receiving::after));
}

fn name(end: End) -> &'static str {
    match end {
        End::Idle => "Idle",
        End::Agreed => "Agreed",
        End::Open => "Open",
        End::Seen => "Seen",
        End::Down(_) => "Down(R)",
        End::Recalled(_) => "Recalled(R)",
        End::Stop(_) => "Stop(C)",
        End::Closed(_) => "Closed(C)",
    }
}

/// One row a state, one column an event; an empty cell is a state that stays.
fn half<S: Copy + Debug + PartialEq>(states: &[S], after: fn(S, Event) -> S) -> String {
    let mut table = String::from("| |");
    for event in Event::ALL {
        write!(table, " {event:?} |").unwrap();
    }
    table += "\n|---|";
    table += &"---|".repeat(Event::ALL.len());
    table.push('\n');
    for &state in states {
        write!(table, "| `{state:?}` |").unwrap();
        for event in Event::ALL {
            let next = after(state, event);
            let cell = if next == state { String::new() } else { format!(" `{next:?}`") };
            write!(table, "{cell} |").unwrap();
        }
        table.push('\n');
    }
    table
}

fn compare(title: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/handover.md");
    let page = std::fs::read_to_string(&path).expect("docs/design/handover.md is there");
    let begin = format!("<!-- drawn: {title} -->\n");
    let end = "<!-- end of drawing -->";
    let from = page.find(&begin).expect("the table has its mark") + begin.len();
    let to = from + page[from..].find(end).expect("the table has its end");
    if page[from..to] == *drawn {
        return;
    }
    if std::env::var_os("SHUNT_DRAW").is_some() {
        let page = format!("{}{drawn}{}", &page[..from], &page[to..]);
        std::fs::write(&path, page).expect("the page can be written");
        return;
    }
    panic!("the table `{title}` of docs/design/handover.md should be\n{drawn}");
}
