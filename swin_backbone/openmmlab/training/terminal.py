"""A shorter log on the terminal; the log file is complete."""

import logging
from typing import Any

from mmengine.logging import MMLogger
from mmengine.runner import Runner

# Beginnings of mmengine's longest records, hundreds of lines before the first iteration.
FOR_THE_FILE = (
    f'\n{"-" * 60}\nSystem environment:',
    'Config:\n',
    'Hooks will be executed in the following order:\n',
    'paramwise_options -- ',
)


class BriefRunner(Runner):
    """mmengine's Runner, but environment, config, hooks and rates of parameters are only in the log file.

    log_level='DEBUG' prints them.
    """

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        consoles = [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]
        for console in consoles:
            if logger.log_file and console.level >= logging.INFO:
                console.addFilter(lambda record: not record.getMessage().startswith(FOR_THE_FILE))
        if logger.log_file:
            hidden = 'environment, config, hooks, the rate of each parameter'
            logger.info(f"{hidden}: see {logger.log_file} (log_level='DEBUG' prints them here too)")
        return logger
