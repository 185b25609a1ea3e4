package enforce

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// program is nvidia-cuda-mps-control for one GPU.
type program struct {
	// path is the program's below root, which becomes its own root unless
	// empty: the driver's programs want the driver's libraries.
	path, root string
	// gpu is the only GPU that the daemon and its server see.
	gpu string
	// pipe and log are the daemon's directories, below root too.
	pipe, log string
	multiUser bool
	// answer bounds a command.
	answer time.Duration
}

// The commands, of NVIDIA's "MPS v2 interface". A default is for servers
// that start later, and lost with the daemon; the others are for later clients of
// the server with a PID. The GPU is 0: a daemon sees only one.
func commands(l daemonLimits, servers []int) []string {
	list := []string{fmt.Sprintf("set_default_active_thread_percentage %d", l.Percent)}
	if l.MemoryMiB > 0 {
		list = append(list, fmt.Sprintf("set_default_device_pinned_mem_limit 0 %dM", l.MemoryMiB))
	}
	for _, pid := range servers {
		list = append(list, fmt.Sprintf("set_active_thread_percentage %d %d", pid, l.Percent))
		if l.MemoryMiB > 0 {
			list = append(list, fmt.Sprintf("set_device_pinned_mem_limit %d 0 %dM", pid, l.MemoryMiB))
		}
	}
	return list
}

const (
	getPercent  = "get_default_active_thread_percentage"
	getServers  = "get_server_list"
	quitCommand = "quit"
)

// percent asks for the default. An answer shows that the daemon is healthy.
func (p *program) percent(ctx context.Context) (float64, error) {
	text, err := p.send(ctx, getPercent)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(lastLine(text), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: unexpected answer %q", getPercent, wellknown.ClipTo(text, 200))
	}
	return percent, nil
}

// limit sets the limits, and verifies that they are set.
func (p *program) limit(ctx context.Context, l daemonLimits) error {
	text, err := p.send(ctx, getServers)
	if err != nil {
		return err
	}
	var servers []int
	for word := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(word); err == nil {
			servers = append(servers, pid)
		}
	}
	for _, command := range commands(l, servers) {
		if _, err := p.send(ctx, command); err != nil {
			return err
		}
	}
	percent, err := p.percent(ctx)
	if err == nil && int(percent+0.5) != l.Percent {
		return fmt.Errorf("the default thread percentage is %g, not the %d that was set", percent, l.Percent)
	}
	return err
}

func lastLine(text string) string {
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
