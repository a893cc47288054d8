"""Processes that do the same thing at one moment."""

import multiprocessing

import torch

NUMBER = 16


def at_once(function, *given, number=NUMBER):
    """Call a function with its number in so many processes at one moment, and return results or errors."""
    context = multiprocessing.get_context('fork')
    barrier, queue = context.Barrier(number), context.Queue()

    def work(index):
        torch.set_num_threads(1)
        barrier.wait(120)
        try:
            queue.put((index, function(index, *given)))
        except Exception as error:
            queue.put((index, f'{type(error).__name__}: {error}'))

    processes = [context.Process(target=work, args=(index,)) for index in range(number)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=240) for _ in processes)
    for process in processes:
        process.join(60)
    return [results[index] for index in range(number)]
