//! Saves of Redis in the background, one after the other, while something is measured.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use crate::interrupt;

/// Enough for saves of a second or so.
const KEYS: &str = "300000";
const FILL: &str = "for i = 1, ARGV[1] do redis.call('SET', 'saved:' .. i, ARGV[2]) end";
const LOOK_EVERY: Duration = Duration::from_millis(5);
const REPLY_TIME_MAX: Duration = Duration::from_secs(20);
const SAVE_TIME_MAX: Duration = Duration::from_secs(60);
/// Of the looks at the server, those that must have seen a save.
const PERCENT_SAVING_MIN: usize = 90;

/// Does something while the Redis at this port saves. Fails if it did not save nearly all the time.
pub fn while_saving<T>(port: u16, something: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut redis = Redis::connect(port)?;
    redis.ask(&["EVAL", FILL, "0", KEYS, &"x".repeat(1024)])?;
    redis.ask(&["BGSAVE"])?;
    let is_over = AtomicBool::new(false);
    let (outcome, saving) = thread::scope(|scope| {
        let saves = scope.spawn(|| redis.save_until(&is_over));
        let outcome = something();
        is_over.store(true, Relaxed);
        (outcome, saves.join().expect("no panic"))
    });
    let (value, percent) = (outcome?, saving?);
    redis.wait_for_save()?;
    if percent < PERCENT_SAVING_MIN {
        bail!("Redis saved for {percent} % of the time only");
    }
    Ok(value)
}

struct Redis(BufReader<TcpStream>);

impl Redis {
    fn connect(port: u16) -> Result<Redis> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(REPLY_TIME_MAX))?;
        Ok(Redis(BufReader::new(stream)))
    }

    /// In what share of looks a save was under way, in percent.
    fn save_until(&mut self, is_over: &AtomicBool) -> Result<usize> {
        let (mut looks, mut saving) = (0, 0);
        while !is_over.load(Relaxed) {
            looks += 1;
            if self.is_saving()? {
                saving += 1;
            } else {
                self.ask(&["BGSAVE"])?;
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(saving * 100 / looks.max(1))
    }

    /// The last save would disturb the next measure.
    fn wait_for_save(&mut self) -> Result<()> {
        let deadline = Instant::now() + SAVE_TIME_MAX;
        while self.is_saving()? {
            interrupt::check()?;
            if Instant::now() > deadline {
                bail!("Redis did not end its save in time");
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn is_saving(&mut self) -> Result<bool> {
        let persistence = self.ask(&["INFO", "persistence"])?;
        if !persistence.contains("rdb_last_bgsave_status:ok") {
            bail!("Redis could not save:\n{persistence}");
        }
        Ok(persistence.contains("rdb_bgsave_in_progress:1"))
    }

    fn ask(&mut self, words: &[&str]) -> Result<String> {
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let request = format!("*{}\r\n{}", words.len(), words.collect::<String>());
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        match (line.get(..1), line.get(1..).unwrap_or_default().trim_end()) {
            (Some("-"), error) => bail!("Redis answered: {error}"),
            (Some("$"), length) if length != "-1" => {
                let mut text = vec![0; length.parse::<usize>()? + "\r\n".len()];
                self.0.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            _ => Ok(line),
        }
    }
}
