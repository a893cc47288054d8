"""Hooks of a training and a test: errors, signals, validations, and lines of the log.

All hooks of the workbench, in the order in which they run. mmengine runs hooks by priority, and those of equal priority
in the order of their registration: default hooks, hooks of the config, `SafeRunner.register_hooks`, `build_runner`, and
`run_loop`.

    HIGHEST    ValLossHook            val_loss.py                  add losses to the metrics of a validation
    VERY_HIGH  AdaptCheckpointHook    resume/adapt_hook.py         adapt a loaded checkpoint, restore the position
    VERY_HIGH  AccelerateHook         openmmlab/layers/            accelerate the model of a test, also in eight bits
    HIGH       NonFiniteGuardHook     nan_guard.py                 skip steps whose loss or gradient is not finite
    NORMAL     PredictByShapeHook     validation.py                predict the pictures of each shape in turn
    NORMAL     MaskAreasHook          validation.py                remove boxes from a file with masks
    NORMAL     UniqueFileNamesHook    prediction_outputs.py        stop a test whose pictures have equal names
    NORMAL     WriteLabelsHook        prediction_outputs.py        write a segmentor's predictions as PNGs
    VERY_LOW   WholeCheckpointHook    resume/checkpoint_hook.py    save, with a whole checkpoint at any moment
    VERY_LOW   MixedPrecisionHook     openmmlab/mixed_precision.py test in mixed precision
    VERY_LOW   BroadcastBuffersHook   validation.py                give all processes the buffers of the first
    VERY_LOW   ProgressHook           build.py                     record which phases have worked
    LOWEST     SignalHook             signals.py                   save or stop on a signal
    LOWEST     DataGuardHook          data/guard.py                keep the checks of the data, count skipped pictures
    LOWEST     CurvesHook             curves.py                    draw curves.png
    LOWEST     EstimateHook           estimate.py                  log the time of a step and of the training
    LOWEST     MetricNamesHook        metric_names.py              check the names of metrics by a trial validation
    LOWEST     RepeatValidationHook   resume/loops.py              repeat the validation that a resume has missed
"""
