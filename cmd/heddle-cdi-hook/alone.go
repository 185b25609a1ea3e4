package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// takeAlone takes files for the container, each for a share that one container at a time can have: enforcers that limit
// each container cannot limit two together. A file names the process of the last container, which may run no more.
func takeAlone(proc string, stdin io.Reader, files []string) error {
	c, err := readState(stdin)
	if err != nil {
		return err
	}
	started, err := startOf(proc, c.PID)
	if err != nil {
		return err
	}
	own := fmt.Sprintln(c.PID, started)
	for _, file := range files {
		text, err := hostfile.Read(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var pid int
		var since string
		if n, _ := fmt.Sscan(string(text), &pid, &since); n == 2 && string(text) != own {
			if now, err := startOf(proc, pid); err == nil && now == since {
				return fmt.Errorf("another container has the share (process %d): its enforcer limits each container, "+
					"and not two together", pid)
			}
		}
		if err := hostfile.Write(file, []byte(own), 0o600, hostfile.Quick); err != nil {
			return err
		}
	}
	return nil
}

// startOf returns the time at which a process that has not ended began, in ticks since the boot (proc_pid_stat(5)).
func startOf(proc string, pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	// The name in parentheses may have blanks; field 3, the state, follows it.
	_, rest, _ := strings.Cut(string(text), ") ")
	const state, start = 0, 22 - 3
	fields := strings.Fields(rest)
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[start], nil
}
