"""What a person sees of one run: a progress bar on a terminal, plain lines in a log. Always on stderr."""

import sys

from tqdm import tqdm


class Progress:
    """Called by ``execute`` after every epoch; shows epoch, loss, images/s and the time left."""

    def __init__(self, stream=sys.stderr):
        self.stream, self.bar = stream, None

    def __call__(self, event):
        speed = f"{event['images_per_second']:,.0f} images/s"
        if not self.stream.isatty():
            left = (event["epochs"] - event["epoch"]) * event["seconds"]
            line = f"epoch {event['epoch']}/{event['epochs']}  loss {event['loss']:.4f}  {speed}  {left:.0f} s left"
            print(line, file=self.stream, flush=True)
            return
        if self.bar is None:
            shape = "{desc} {n_fmt}/{total_fmt} |{bar}| {postfix} {remaining} left"
            self.bar = tqdm(total=event["epochs"], desc="epoch", file=self.stream, bar_format=shape, leave=True)
        self.bar.set_postfix_str(f"loss {event['loss']:.4f}, {speed},", refresh=False)
        self.bar.update(event["epoch"] - self.bar.n)

    def close(self):
        """End the bar's line."""
        if self.bar is not None:
            self.bar.close()
