package wellknown

// Keys of HAMi's protocol for MetaX sGPU, which HAMi's code spells out and no
// configuration moves: HAMi pkg/device/metax/protocol.go, pkg/util/types.go,
// pkg/util/nodelock/nodelock.go.
const (
	// HAMiGPUs is on a Node: its shared GPUs, as JSON.
	HAMiGPUs = "metax-tech.com/node-gpu-devices"
	// MetaXScores and MetaXLosses are on a Node: what a request for n exclusive GPUs would get now, and what that
	// would cost the rest, as JSON {"n": number}. HAMi subtracts the number from 2000 to compare nodes, losses for
	// binpack and scores for spread: pkg/device/metax/device.go, parseMetaxAnnos and ScoreNode.
	MetaXScores = "metax-tech.com/gpu.topology.scores"
	MetaXLosses = "metax-tech.com/gpu.topology.losses"
	// HAMiHandshake begins annotations that HAMi's scheduler writes on every Node, one for each
	// vendor: pkg/device/devices.go, CheckHealth.
	HAMiHandshake = "hami.io/node-handshake"
	// HAMiLock is on a Node while HAMi binds a pod to it, and until the node's
	// plugin takes it away.
	HAMiLock = "hami.io/mutex.lock"

	// HAMiAllocation is on a pod: the GPUs of each container, as JSON.
	HAMiAllocation = "metax-tech.com/gpu-devices-allocated"
	// HAMiPredicateTime is on a pod: when HAMi chose, in Unix nanoseconds.
	HAMiPredicateTime = "metax-tech.com/predicate-time"
	// HAMiGPUPolicy and HAMiNodePolicy are on a pod: binpack or spread, and for
	// GPUs what only HAMi does (topology-aware, mutex).
	HAMiGPUPolicy  = "hami.io/gpu-scheduler-policy"
	HAMiNodePolicy = "hami.io/node-scheduler-policy"
	// HAMiNode is on a pod: the node that HAMi chose.
	HAMiNode = "hami.io/vgpu-node"
	// HAMiChosenTime is on a pod: when HAMi chose, in Unix seconds.
	HAMiChosenTime = "hami.io/vgpu-time"
	// HAMiBindTime is on a pod: when HAMi bound it, in Unix seconds.
	HAMiBindTime = "hami.io/bind-time"
	// HAMiBindPhase is on a pod: allocating by HAMi, then success or failed by
	// the node's plugin.
	HAMiBindPhase = "hami.io/bind-phase"
)
