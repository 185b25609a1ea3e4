//go:build !cgo || !linux

package nvml

// Processes implements UsageLibrary.
func (noLibrary) Processes(string) ([]Process, error) { return nil, ErrAbsent }

// Samples implements UsageLibrary.
func (noLibrary) Samples(string, uint64) ([]Sample, error) { return nil, ErrAbsent }
