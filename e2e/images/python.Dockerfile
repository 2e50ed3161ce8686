# A plain Python image from Debian's packages, where python:slim can't be pulled. The context holds base.tar.
FROM scratch
ADD base.tar /
CMD ["python3"]
