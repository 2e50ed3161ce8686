"""Weights out of checkpoints and into them, in the form that Hugging Face's transformers reads and writes: a folder
with config.json and safetensors files. Only Llamas; never a pickle. Other models are exported under their own names.

    python -m trainmaster.tools.huggingface export CHECKPOINT OUT_DIR
    python -m trainmaster.tools.huggingface import HF_DIR OUT_DIR
"""
