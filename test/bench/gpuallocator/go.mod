module github.com/heddle-dev/heddle/test/bench/gpuallocator

go 1.26.0

require (
	github.com/NVIDIA/go-gpuallocator v0.6.0
	github.com/heddle-dev/heddle v0.0.0
)

require (
	github.com/NVIDIA/go-nvlib v0.12.0 // indirect
	github.com/NVIDIA/go-nvml v0.13.4-0 // indirect
	github.com/google/uuid v1.6.0 // indirect
)

replace github.com/heddle-dev/heddle => ../../..
