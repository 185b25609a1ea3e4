// Package nvswitch reads the errors (SXids) that the driver of NVSwitches writes to the kernel's log.
//
// It owns the formats of /dev/kmsg and of the driver's lines. Which errors degrade a link is decided in topo/links.
package nvswitch

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
)

const (
	// recordSize exceeds the kernel's largest record (PRINTK_MESSAGE_MAX), maxRecords the records of its log.
	recordSize, maxRecords = 8 << 10, 1 << 20
	// maxLinks bounds the links with errors: a node has at most a few hundred.
	maxLinks = 4096
	// maxText bounds the text of an error: it is part of a value in a NodeTopology.
	maxText = 36
)

// Link is a link of a switch, by the switch's PCI address: "NVSwitch link 46".
type Link struct{ Switch, Name string }

// Log reads the kernel's log. It is not safe for concurrent use. A nil Log reads nothing.
type Log struct {
	fd    int
	boot  time.Time
	links map[Link]machine.SwitchErrors
}

// Open opens /dev/kmsg, at its first record. The kernel lets processes with CAP_SYSLOG read it.
func Open(path string) (*Log, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	var up unix.Timespec // The clock of the log, which stops while the machine is suspended.
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &up); err != nil {
		return nil, err
	}
	return &Log{fd: fd, boot: time.Now().Add(-time.Duration(up.Nano())), links: map[Link]machine.SwitchErrors{}}, nil
}

// Resume restores a fatal error that an earlier process read, unless the machine was rebooted after it: the kernel may
// have overwritten its record.
func (l *Log) Resume(of Link, text string, since time.Time) {
	if l != nil && since.After(l.boot) {
		l.links[of] = machine.SwitchErrors{Fatal: machine.SXids{Count: 1, Text: text, Since: since}}
	}
}

// Read reads the new records, and returns the errors of each link since the driver probed its switch. The caller must
// not change the map.
func (l *Log) Read() map[Link]machine.SwitchErrors {
	if l == nil {
		return nil
	}
	buffer := make([]byte, recordSize)
	for range maxRecords {
		n, err := unix.Read(l.fd, buffer)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // Records were overwritten, or a signal came.
		}
		if err != nil || n <= 0 {
			break // EAGAIN: there are no more.
		}
		for line := range strings.Lines(string(buffer[:n])) {
			l.add(line)
		}
	}
	return l.links
}

// ofDriver matches a record by the kernel itself (priorities from 8 on are of programs): "3,1234,5678901,-;" and the
// driver's text (NVIDIA/open-gpu-kernel-modules, error_nvswitch.h and linux_nvswitch.c).
var ofDriver = regexp.MustCompile(`^[0-7],\d+,(\d{1,15}),[^;]*;nvidia-nvswitch\d*: (?:` +
	`SXid \(PCI:(` + address + `)\): (\d{1,5}), (Fatal|Non-fatal), Link (\d{1,3}) ([ -~]+)|` +
	`Probing device (` + address + `),)`)

const address = `[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`

// add counts an error that the driver logs, and forgets the errors of a switch that it probes, as after a reset.
func (l *Log) add(line string) {
	m := ofDriver.FindStringSubmatch(line)
	if m == nil {
		return
	}
	if probed := m[7]; probed != "" {
		maps.DeleteFunc(l.links, func(link Link, _ machine.SwitchErrors) bool { return link.Switch == probed })
		return
	}
	number, _ := strconv.Atoi(m[5])
	link := Link{m[2], fmt.Sprintf("NVSwitch link %d", number)}
	errs, known := l.links[link]
	if !known && len(l.links) >= maxLinks {
		return
	}
	s := &errs.NonFatal
	if m[4] == "Fatal" {
		s = &errs.Fatal
	}
	if s.Count++; s.Count == 1 {
		usec, _ := strconv.ParseInt(m[1], 10, 64)
		s.Since = l.boot.Add(time.Duration(usec) * time.Microsecond)
	}
	text := strings.TrimSuffix(strings.TrimSpace(m[6]), " (First)")
	s.Text = m[3] + " " + text[:min(len(text), maxText)]
	l.links[link] = errs
}
