from horovod.common.basics import HorovodBasics

_basics = HorovodBasics()
init = _basics.init
rank = _basics.rank
allreduce = _basics.sum
