"""Columns of tables as one long sequence of tokens: Parquet files, and datasets that Hugging Face's `datasets` saved.

A table is read in chunks: row groups of Parquet, record batches of Arrow. pyarrow and tokenizers are imported only when
a table is opened.
"""
