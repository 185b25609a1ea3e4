package enforce

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

func TestMPSLimitsClientsAndServer(t *testing.T) {
	n := newNode(t, config.Enforce{})
	got := n.edits(share("p1", gpuA, 30, 4096))
	want := &cdi.ContainerEdits{
		Env: []string{
			"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M", "CUDA_MPS_CLIENT_PRIORITY=0",
		},
		Mounts: []*cdi.Mount{
			{
				HostPath: filepath.Join(n.dir, "mps", gpuA, "pipe"), ContainerPath: "/tmp/nvidia-mps",
				Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"},
			},
			{
				HostPath: "/dev/shm/heddle", ContainerPath: "/dev/shm",
				Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
	best := share("p2", gpuA, 0, 20480)
	best.Policy = quota.BestEffort
	got = n.edits(best)
	if diff := cmp.Diff([]string{
		"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M", "CUDA_MPS_CLIENT_PRIORITY=1",
	}, got.Env); diff != "" {
		t.Errorf("environment of a best-effort share (-want +got):\n%s", diff)
	}
	n.edits(share("p3", gpuB, 50, 8192))
	// A process without heddle's environment has what its GPU's largest consumer has.
	if diff := cmp.Diff([]string{
		"start -f on " + gpuA,
		"set_default_active_thread_percentage 30", "set_default_device_pinned_mem_limit 0 4096M",
		"set_active_thread_percentage SERVER 30", "set_device_pinned_mem_limit SERVER 0 4096M",
		"set_default_active_thread_percentage 100", "set_default_device_pinned_mem_limit 0 20480M",
		"set_active_thread_percentage SERVER 100", "set_device_pinned_mem_limit SERVER 0 20480M",
	}, n.received()); diff != "" {
		t.Errorf("commands to the daemon of GPU A (-want +got):\n%s", diff)
	}
	daemons := []Daemon{
		{GPU: gpuA, Index: 3, State: Running, Percent: 100, MemoryMiB: 20480, Consumers: 2},
		{GPU: gpuB, Index: 3, State: Running, Percent: 50, MemoryMiB: 8192, Consumers: 1},
	}
	if diff := cmp.Diff(daemons, n.limiter.Daemons(), cmpopts.IgnoreFields(Daemon{}, "Since", "LastRunning")); diff != "" {
		t.Errorf("daemons (-want +got):\n%s", diff)
	}
	for _, d := range n.limiter.Daemons() {
		if d.Since.IsZero() || d.LastRunning.Before(d.Since) {
			t.Errorf("running since %s, well at %s", d.Since, d.LastRunning)
		}
	}

	// p2 and p3 are gone: the limits go down, and GPU B's daemon goes.
	pids := n.pids(gpuB)
	p1 := live()
	n.keep(p1)
	n.gone(pids)
	n.edits(&p1)
	received := n.received()
	if diff := cmp.Diff("set_device_pinned_mem_limit SERVER 0 4096M", received[len(received)-1]); diff != "" {
		t.Errorf("last command to the daemon of GPU A (-want +got):\n%s", diff)
	}
	pids = n.pids(gpuA)
	n.end()
	n.gone(pids)
}

// TestMPSPriority: a pod with a priority below that of pods without a PriorityClass is a
// client below normal.
func TestMPSPriority(t *testing.T) {
	n := newNode(t, config.Enforce{})
	for _, tt := range []struct {
		pod      string
		policy   quota.Policy
		priority int32
		want     string
	}{
		{"p0", quota.FixedShare, 0, "CUDA_MPS_CLIENT_PRIORITY=0"},
		{"p1", quota.FixedShare, 1000, "CUDA_MPS_CLIENT_PRIORITY=0"},
		{"p2", quota.FixedShare, -1, "CUDA_MPS_CLIENT_PRIORITY=1"},
		{"p3", quota.BestEffort, 1000, "CUDA_MPS_CLIENT_PRIORITY=1"},
	} {
		l := share(tt.pod, gpuA, 10, 1024)
		l.Policy, l.Priority = tt.policy, tt.priority
		if e := n.edits(l); !slices.Contains(e.Env, tt.want) {
			t.Errorf("%s: %q, want %s", tt.pod, e.Env, tt.want)
		}
	}
}

func TestMPSComesBack(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer time.Duration // Only a daemon that hangs may take longer, however busy the machine is.
		harm   func(*node)
		want   string
	}{
		{"after it was killed", 0, func(n *node) { _ = syscall.Kill(n.pids(gpuA)[0], syscall.SIGKILL) }, "the control daemon ended: signal: killed"},
		{"after it hung", 3 * time.Second, func(n *node) { n.touch(gpuA, "hang") }, "the control daemon hangs: get_default_active_thread_percentage: no answer: none in 3s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, config.Enforce{})
			n.end()
			n.answer = tt.answer
			n.start()
			n.edits(share("p1", gpuA, 30, 4096))
			n.await(Running)
			began := n.limiter.Daemons()[0].Since
			old := n.pids(gpuA)
			tt.harm(n)
			got := n.await(Broken)
			if diff := cmp.Diff(notice{GPU: gpuA, State: Broken, Reason: tt.want, Restarts: 1}, got); diff != "" {
				t.Errorf("notice (-want +got):\n%s", diff)
			}
			_ = os.Remove(filepath.Join(n.dir, "mps", gpuA, "hang"))
			again := n.until("running again", func(d *Daemon) bool { return d.State == Running && d.Restarts == 1 })
			n.gone(old) // Its server too.
			if again.LastRunning.Before(began) || again.Since.Before(began) {
				t.Errorf("it ran since %s, and now since %s: %+v", began, again.Since, again)
			}
			want := Daemon{GPU: gpuA, Index: 3, State: Running, Restarts: 1, LastError: tt.want, Percent: 30, MemoryMiB: 4096, Consumers: 1}
			if diff := cmp.Diff(want, again, cmpopts.IgnoreFields(Daemon{}, "Since", "LastRunning")); diff != "" {
				t.Errorf("once it runs again (-want +got):\n%s", diff)
			}
			n.edits(share("p1", gpuA, 30, 4096))
			pids := n.pids(gpuA)
			n.end()
			n.gone(pids)
		})
	}
}

func TestMPSThatDoesNotStart(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.touch(gpuA, "reject")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		n.await(Broken)
		cancel(errors.New("time is up"))
	}()
	_, _, err := n.limiter.Edits(ctx, share("p1", gpuA, 30, 4096))
	if !errors.Is(err, ErrNotReady) {
		t.Errorf("a container starts without its limit: %v", err)
	}
	const reason = "the control daemon ended as it started: exit status 1"
	if got := n.await(Broken); got.Reason != reason {
		t.Errorf("reason is %q", got.Reason)
	}
	// A reader between two attempts sees the reason.
	if got := n.await(Starting); got.Reason != reason {
		t.Errorf("while it is started again the reason is %q", got.Reason)
	}
	got := n.until("reported", func(d *Daemon) bool { return d.LastError != "" })
	if got.Reason != reason || got.LastError != reason || !got.LastRunning.IsZero() {
		t.Errorf("a daemon that never ran: %+v", got)
	}
	_ = os.Remove(filepath.Join(n.dir, "mps", gpuA, "reject"))
	n.edits(share("p1", gpuA, 30, 4096))
}

func TestMPSStopsAStubbornDaemon(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.touch(gpuA, "stubborn")
	n.edits(share("p1", gpuA, 30, 4096))
	pids := n.pids(gpuA)
	n.end()
	n.gone(pids)
}

func TestMPSOfOneUser(t *testing.T) {
	user := func(l *Limit, uid int64) *Limit {
		l.UID = &uid
		return l
	}
	t.Run("a second user is rejected", func(t *testing.T) {
		n := newNode(t, config.Enforce{})
		n.edits(share("p1", gpuA, 30, 4096)) // The image's user counts as root.
		n.edits(user(share("p2", gpuA, 30, 4096), 0))
		_, _, err := n.limiter.Edits(t.Context(), user(share("p3", gpuA, 30, 4096), 1000))
		want := "mps: GPU 3 has clients of user 0 (p1_c), and user 1000 would wait until they are gone: " +
			"one MPS server is of one user, unless sgpu.enforce.mpsMultiUser is on"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		n.edits(user(share("p3", gpuB, 30, 4096), 1000))
		if got := n.limiter.Daemons()[0].Consumers; got != 2 {
			t.Errorf("GPU A has %d consumers, and one that was rejected", got)
		}
	})
	t.Run("or shares the server", func(t *testing.T) {
		n := newNode(t, config.Enforce{MPSMultiUser: true})
		n.edits(share("p1", gpuA, 30, 4096))
		n.edits(user(share("p2", gpuA, 30, 4096), 1000))
		if diff := cmp.Diff("start -f -multiuser-server on "+gpuA, n.received()[0]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestMPSRejects(t *testing.T) {
	n := newNode(t, config.Enforce{})
	two := share("p1", gpuA, 30, 4096)
	two.GPUs = append(two.GPUs, share("p1", gpuB, 30, 4096).GPUs...)
	_, _, err := n.limiter.Edits(t.Context(), two)
	if err == nil || !strings.Contains(err.Error(), "shares of 2 GPUs") {
		t.Errorf("two GPUs: %v", err)
	}
	n.limiter.mps.dir = strings.Repeat("/long", 20)
	_, _, err = n.limiter.Edits(t.Context(), share("p1", gpuA, 30, 4096))
	if err == nil || !strings.Contains(err.Error(), "too long for sockets") {
		t.Errorf("long path: %v", err)
	}
	if got := n.limiter.Daemons(); len(got) != 0 {
		t.Errorf("daemons for those that were rejected: %v", got)
	}
}
