"""What a person sees of a campaign: a bar on a terminal, a plain line for every finished cell in a log. On stderr."""

import sys
import time

from tqdm import tqdm

from runner.sweep import cells


class Progress:
    """Cells done, running and failed, images per second and the time left, as an executor reports them."""

    def __init__(self, planned, done, failed, stream=None):
        self.planned, self.done, self.failed, self.stream = planned, done, failed, stream or sys.stderr
        self.bar, self.begun, self.first = None, time.monotonic(), done
        if self.stream.isatty():
            shape = "{desc} {n_fmt}/{total_fmt} |{bar}| {postfix} {remaining} left"
            self.bar = tqdm(total=planned, initial=done, desc="cells", file=self.stream, bar_format=shape)

    def finished(self, run_id, event, detail):
        """One more cell has an outcome."""
        self.done += 1
        self.failed += detail["outcome"] != "complete"
        if self.bar is not None:
            self.bar.update()
            if event == "failed":
                self.bar.write(f"{run_id} {detail['outcome']}: {detail['reason']}", file=self.stream)
            return
        outcome = detail["outcome"]
        took = f"{detail['seconds']:.1f} s" if "seconds" in detail else detail.get("reason") or "recorded late"
        left = (time.monotonic() - self.begun) / (self.done - self.first) * (self.planned - self.done)
        line = f"[{self.done}/{self.planned}] {run_id} {outcome}, {took}; {self.failed} failed, {left:.0f} s left"
        print(line, file=self.stream, flush=True)

    def show(self, folder, run_ids):
        """What goes on now: the cells at work. Nothing is printed in a log."""
        if self.bar is not None:
            speed = sum(at["images_per_second"] for at in cells.reports(folder, run_ids).values())
            self.bar.set_postfix_str(f"{len(run_ids)} running, {self.failed} failed, {speed:,.0f} images/s,")

    def notice(self, text):
        """What the driver waits for."""
        if self.bar is not None:
            self.bar.write(f"notice: {text}", file=self.stream)
        else:
            print(f"notice: {text}", file=self.stream, flush=True)

    def close(self):
        """End the bar's line."""
        if self.bar is not None:
            self.bar.close()
