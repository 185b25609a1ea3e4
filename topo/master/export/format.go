package export

// The formats of GET /v1/export/{format}.
const (
	FormatSlurmTree  = "slurm-tree"
	FormatSlurmBlock = "slurm-block"
	FormatHyperNodes = "hypernodes"
	FormatKueue      = "kueue-topology"
	FormatNodes      = "node-labels"
)
