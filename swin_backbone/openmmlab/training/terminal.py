"""What of a run's log is printed; the log file has all of it."""

import logging
from typing import Any

from mmengine.logging import MMLogger
from mmengine.runner import Runner

# How mmengine begins the records that are hundreds of lines in all, before the first iteration.
FOR_THE_FILE = (
    f'\n{"-" * 60}\nSystem environment:',
    'Config:\n',
    'Hooks will be executed in the following order:\n',
    'paramwise_options -- ',
)


class BriefRunner(Runner):
    """mmengine's Runner, which prints neither the environment, the config, the hooks nor each parameter's rate.

    They are in the log file, and with log_level='DEBUG' they are printed too.
    """

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """The Runner's logger, whose console leaves out what is for the file."""
        logger = super().build_logger(*args, **kwargs)
        consoles = [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]
        for console in consoles:
            if logger.log_file and console.level >= logging.INFO:
                console.addFilter(_is_for_the_console)
        if logger.log_file:
            hidden = 'environment, config, hooks, the rate of each parameter'
            logger.info(f"{hidden}: see {logger.log_file} (log_level='DEBUG' prints them here too)")
        return logger


def _is_for_the_console(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(FOR_THE_FILE)
