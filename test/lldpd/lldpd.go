//go:build linux

// Package lldpd makes Ethernet switches of network namespaces: veth cables and
// lldpd, a real LLDP implementation, at the far end.
//
// It owns the namespaces and the processes in them, and leaves nothing behind:
// everything lives in a process namespace of its own and ends with it. It
// needs root.
package lldpd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// envInside marks the process that is in the namespaces.
const envInside = "HEDDLE_TEST_NAMESPACES"

// Isolate runs the calling top-level test in network, mount and process
// namespaces of its own, by running this test binary again for this test only.
// There it returns true. Outside it returns false once that run has ended, and
// the test has its result; or the test is skipped for want of root, ip or
// lldpd.
func Isolate(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		if err := inside(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	for _, program := range []string{"ip", "nsenter", "unshare", "lldpd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s (apt-get install iproute2 util-linux lldpd)", program)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in its namespaces: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	default:
		t.Logf("in its namespaces:\n%s", out)
	}
	return false
}

// inside gives the namespaces their own /proc and /sys.
func inside() error {
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Mount("sysfs", "/sys", "sysfs", 0, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"),
		os.Mkdir(dir+"/lldpd", 0o755),
		run(context.Background(), "ip", "link", "set", "lo", "up"))
}

// dir has the switches' files, in the /run that is ours alone: lldpd gives up
// root and reads its configuration as another user.
const dir = "/run"

// Switch is a network namespace with lldpd in it.
type Switch struct {
	name, mac      string
	holder, daemon *exec.Cmd
	ports          []string
	config         string
}

// NewSwitch makes a switch without ports. mac is the address of its management
// port and so its chassis ID; an empty one makes lldpd identify itself by a
// name that is the same for all of them.
func NewSwitch(ctx context.Context, name, mac string) (*Switch, error) {
	s := &Switch{name: name, mac: mac}
	s.holder = exec.CommandContext(ctx, "unshare", "-n", "sleep", "infinity")
	if err := s.holder.Start(); err != nil {
		return nil, fmt.Errorf("switch %s: %w", name, err)
	}
	// The namespace is there once it is not ours.
	ours, err := os.Readlink("/proc/self/ns/net")
	for theirs := ours; err == nil && theirs == ours; {
		theirs, err = os.Readlink("/proc/" + s.pid() + "/ns/net")
	}
	if err != nil {
		return nil, fmt.Errorf("switch %s: %w", name, err)
	}
	if mac == "" {
		return s, nil
	}
	return s, errors.Join(
		s.ip(ctx, "link", "add", "mgmt0", "type", "veth", "peer", "name", "mgmt0p"),
		s.ip(ctx, "link", "set", "mgmt0", "address", mac, "up"),
		s.ip(ctx, "link", "set", "mgmt0p", "up"))
}

func (s *Switch) pid() string { return strconv.Itoa(s.holder.Process.Pid) }

func (s *Switch) ip(ctx context.Context, args ...string) error {
	return run(ctx, "nsenter", append([]string{"-t", s.pid(), "-n", "ip"}, args...)...)
}

// Connect lays a cable from a network device that it makes to a
// port of the switch. Ports must be there before Start. Where the kernel has no
// such name, with slashes, lldpd alone has it.
func (s *Switch) Connect(ctx context.Context, netdev, port string) error {
	name := port
	port = strings.ReplaceAll(port, "/", "_")
	if port != name {
		s.config += "configure ports " + port + " lldp portidsubtype local " + name + "\n"
	}
	s.ports = append(s.ports, port)
	return errors.Join(
		run(ctx, "ip", "link", "add", netdev, "type", "veth", "peer", "name", port, "netns", s.pid()),
		s.ip(ctx, "link", "set", port, "alias", netdev, "up"),
		run(ctx, "ip", "link", "set", netdev, "up"))
}

// Port takes a port of the switch up or down.
func (s *Switch) Port(ctx context.Context, port, state string) error {
	return s.ip(ctx, "link", "set", port, state)
}

// Start runs lldpd on the ports; it sends every second.
func (s *Switch) Start(ctx context.Context) error {
	config := filepath.Join(dir, s.name+".conf")
	text := "configure system hostname " + s.name + "\nconfigure lldp tx-interval 1\nconfigure lldp tx-hold 4\n" + s.config
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return fmt.Errorf("switch %s: %w", s.name, err)
	}
	args := []string{"-d", "-u", filepath.Join(dir, s.name+".sock"), "-O", config}
	ports := strings.Join(s.ports, ",")
	if s.mac != "" {
		args = append(args, "-I", ports+",mgmt0", "-C", "mgmt0")
	} else {
		args = append(args, "-I", ports, "-C", "none0")
	}
	shell := "mkdir -p /run/" + s.name + " && mount --bind /run/" + s.name + " /run/lldpd && mount -t sysfs none /sys" +
		" && exec lldpd " + strings.Join(args, " ")
	s.daemon = exec.CommandContext(ctx, "nsenter", "-t", s.pid(), "-n", "unshare", "-m", "sh", "-c", shell)
	log, err := os.Create(filepath.Join(dir, s.name+".log"))
	if err != nil {
		return fmt.Errorf("switch %s: %w", s.name, err)
	}
	s.daemon.Stdout, s.daemon.Stderr = log, log
	if err := s.daemon.Start(); err != nil {
		return fmt.Errorf("switch %s: %w", s.name, err)
	}
	return nil
}

// Log is the output of lldpd.
func (s *Switch) Log() string {
	b, err := os.ReadFile(filepath.Join(dir, s.name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Stop ends lldpd, which sends shutdown frames on its ports.
func (s *Switch) Stop() error {
	if err := s.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("switch %s: %w", s.name, err)
	}
	_, err := s.daemon.Process.Wait()
	return err
}

// Eventually polls until ok, at most 15 s.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for !ok() {
		select {
		case <-limit.C:
			t.Fatalf("not in a minute: %s", what)
		case <-poll.C:
		}
	}
}

func run(ctx context.Context, program string, args ...string) error {
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
