//go:build e2e && !failures && linux

package devices

// closePool has nothing to take down: only the failure scenarios pool rigs.
func closePool() error { return nil }

// sideBySide leaves -parallel as it is.
func sideBySide() error { return nil }
