//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process names a process for good: a pid may be given out again, the pair of pid
// and start time may not.
type process struct {
	pid   int
	start uint64 // clock ticks since boot
}

// readProcess reads /proc/PID/stat. The state is the letter; ok is false when
// there is no such process.
func readProcess(pid int) (p process, state byte, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, 0, false
	}
	return parseStat(pid, string(data))
}

// parseStat reads what follows the name, which is in parentheses and may itself
// hold any character.
func parseStat(pid int, stat string) (p process, state byte, ok bool) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return process{}, 0, false
	}
	fields := strings.Fields(stat[end+1:])
	const threads, startTime = 20 - 3, 22 - 3 // Fields 20 and 22 of the line; the state is field 3.
	if len(fields) <= startTime {
		return process{}, 0, false
	}
	start, err := strconv.ParseUint(fields[startTime], 10, 64)
	if err != nil {
		return process{}, 0, false
	}
	state = fields[0][0]
	if state == 'Z' && fields[threads] != "0" && fields[threads] != "1" {
		// The first thread ended and others run on: so looks, for a moment, a
		// program that executes another from a thread of its own, as
		// clusternode does after it entered the namespaces.
		state = 'R'
	}
	return process{pid: pid, start: start}, state, true
}

// running reports whether a pid is in use by more than a zombie: process 1 of a
// small machine may take seconds to reap, while kill(pid, 0) keeps succeeding.
func running(pid int) bool {
	_, state, ok := readProcess(pid)
	return ok && state != 'Z' && state != 'X'
}

// alive reports whether this very process still runs.
func (p process) alive() bool {
	now, state, ok := readProcess(p.pid)
	return ok && now == p && state != 'Z' && state != 'X'
}

// stop sends a signal and waits; after the grace period it kills.
func (p process) stop(ctx context.Context, sig unix.Signal, grace time.Duration) error {
	if !p.alive() {
		return nil
	}
	if err := unix.Kill(p.pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	deadline := time.Now().Add(grace)
	killed := false
	return poll(ctx, 10*time.Millisecond, func() (bool, error) {
		if !p.alive() {
			return true, nil
		}
		if !killed && time.Now().After(deadline) {
			killed = true
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		return false, nil
	})
}

// savePID records a process for later calls, of this or another program.
func savePID(file string, pid int) error {
	p, _, ok := readProcess(pid)
	if !ok {
		return fmt.Errorf("process %d ended at once", pid)
	}
	return os.WriteFile(file, fmt.Appendf(nil, "%d %d\n", p.pid, p.start), 0o600)
}

// loadPID reads what savePID wrote; ok is false when there is no such record.
func loadPID(file string) (p process, ok bool) {
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return process{}, false
	}
	_, err = fmt.Sscanf(string(data), "%d %d", &p.pid, &p.start)
	return p, err == nil && p.pid > 1
}
