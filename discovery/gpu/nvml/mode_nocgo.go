//go:build !cgo || !linux

package nvml

// ExclusiveProcess implements ModeLibrary.
func (noLibrary) ExclusiveProcess(string, bool) error { return ErrAbsent }
