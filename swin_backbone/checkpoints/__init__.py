"""Published weights in. Names and shapes only: nothing here knows the modules."""

from .load import adapt_state_dict, load_pretrained

__all__ = ['adapt_state_dict', 'load_pretrained']
