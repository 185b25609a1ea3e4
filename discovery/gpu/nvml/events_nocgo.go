//go:build !cgo || !linux

package nvml

import "time"

// WaitEvent implements EventLibrary.
func (noLibrary) WaitEvent(time.Duration) (Event, error) { return Event{}, ErrAbsent }

// Known implements PulseLibrary.
func (noLibrary) Known() []string { return nil }

// Pulse implements PulseLibrary.
func (noLibrary) Pulse(string) (Action, error) { return ActionUnknown, ErrAbsent }
