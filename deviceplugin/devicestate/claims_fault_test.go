package devicestate

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// killedDir, in the environment, is the directory of a process that TestClaimsKilled kills.
const killedDir = "HEDDLE_TEST_KILLED"

// in moves the state to a directory.
func (r *rig) in(dir string) *rig {
	r.options.CDIDir, r.options.StateDir = filepath.Join(dir, "cdi"), filepath.Join(dir, "state")
	r.restart()
	return r
}

// A process is killed at each of its changes of files while it prepares and unprepares a claim: the next one knows the
// claim whole or not at all, prepares it again, and leaves nothing.
func TestClaimsKilled(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		r := claimRig(t).in(dir)
		for {
			_, err := r.PrepareClaim(t.Context(), wants(r, "a", 0, 1))
			if err := errors.Join(err, r.UnprepareClaim("a")); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A cycle makes, renames and removes a record and two specs.
	const changes = 24
	for n := range changes {
		dir := t.TempDir()
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{"cdi", "state/claims"} {
			err := errors.Join(os.MkdirAll(filepath.Join(dir, sub), 0o750), watcher.Add(filepath.Join(dir, sub)))
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClaimsKilled$")
		cmd.Env = append(os.Environ(), killedDir+"="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for range n + 1 {
			<-watcher.Events
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // It was killed.
		_ = watcher.Close()

		r := claimRig(t).in(dir)
		err = r.RestoreClaims(t.Context(), true)
		if claims, files := r.Claims(), r.claimFiles(); err != nil || len(r.Problems()) > 0 || len(claims) > 0 && len(files) < 3 {
			t.Errorf("killed at change %d: %v, %v, claims %v, files %v", n, err, r.Problems(), claims, files)
		}
		if _, err := r.PrepareClaim(t.Context(), wants(r, "a", 0, 1)); err != nil {
			t.Errorf("killed at change %d: %v", n, err)
		}
		if err := r.UnprepareClaim("a"); err != nil {
			t.Errorf("killed at change %d: %v", n, err)
		}
		r.pass(unclaimedFor * 2)
		r.collect()
		if files := r.claimFiles(); len(files) > 0 {
			t.Errorf("killed at change %d: left %v", n, files)
		}
	}
}

// held is a limiter that waits in the first call.
type held struct{ entered, free chan struct{} }

func (h *held) Edits(context.Context, *enforce.Limit) (*specs.ContainerEdits, enforce.Enforced, error) {
	close(h.entered)
	<-h.free
	return &specs.ContainerEdits{}, enforce.Enforced{}, nil
}

// A claim that is unprepared while it is prepared leaves nothing, and a call that its caller has given up prepares
// nothing.
func TestUnprepareWhilePreparing(t *testing.T) {
	r := claimRig(t)
	limiter := &held{entered: make(chan struct{}), free: make(chan struct{})}
	r.options.Limiter = limiter
	r.restart()
	var calls sync.WaitGroup
	calls.Go(func() {
		if _, err := r.PrepareClaim(t.Context(), shares(r, "a", 0, 30, 1024)); err != nil {
			t.Error(err)
		}
	})
	<-limiter.entered
	calls.Go(func() {
		if err := r.UnprepareClaim("a"); err != nil {
			t.Error(err)
		}
	})
	if _, err := r.PrepareClaim(t.Context(), wants(r, "b", 0)); err == nil || !strings.Contains(err.Error(), "is held by claim default/a") {
		t.Errorf("a GPU that is being prepared: %v", err)
	}
	close(limiter.free)
	calls.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.PrepareClaim(ended, wants(r, "a", 0)); err == nil {
		t.Error("prepared for a caller that has gone")
	}
	if files := r.claimFiles(); len(files) > 0 || len(r.Claims()) > 0 {
		t.Errorf("left %v, claims %v", files, r.Claims())
	}
}

// Eight callers at once get one answer, and there is one spec.
func TestClaimOfManyCallers(t *testing.T) {
	r := claimRig(t)
	answers := make([][]string, 8)
	var calls sync.WaitGroup
	for i := range answers {
		calls.Go(func() {
			c, err := r.PrepareClaim(t.Context(), wants(r, "a", 0))
			if answers[i] = names(c); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	for _, answer := range answers {
		if len(answer) != 1 || !slices.Equal(answer, answers[0]) {
			t.Errorf("answers %v", answers)
		}
	}
	if files := r.claimFiles(); len(files) != 2 {
		t.Errorf("files %v, want a record and a spec", files)
	}
}

// The devices of a claim that was deleted and created again under its name stay with the old one until that is unprepared.
func TestClaimMadeAgain(t *testing.T) {
	r := claimRig(t)
	if _, err := r.PrepareClaim(t.Context(), wants(r, "old", 0)); err != nil {
		t.Fatal(err)
	}
	again := wants(r, "new", 0)
	again.Name = "old"
	if _, err := r.PrepareClaim(t.Context(), again); err == nil || !strings.Contains(err.Error(), "is held by claim default/old") {
		t.Error(err)
	}
	if err := r.UnprepareClaim("old"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.PrepareClaim(t.Context(), again); err != nil {
		t.Error(err)
	}
}

// A claim of a GPU that was replaced is refused, and one that was prepared never gets the new GPU.
func TestClaimOfAReplacedGPU(t *testing.T) {
	r := claimRig(t)
	old := wants(r, "a", 0)
	first, err := r.PrepareClaim(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	r.alter(func(m *machine.Machine) { m.GPUs[0].UUID = "GPU-00000000-0000-4000-8000-00000000000f" })
	r.restart()
	if err := os.RemoveAll(r.options.CDIDir); err != nil {
		t.Fatal(err)
	}
	if err := r.RestoreClaims(t.Context(), true); err != nil {
		t.Log(err)
	}
	for _, file := range r.claimFiles() {
		text, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(text), r.machine.GPUs[0].UUID) {
			t.Errorf("%s names the new GPU: %s, %v", file, text, err)
		}
	}
	if again, err := r.PrepareClaim(t.Context(), old); err != nil || !slices.Equal(names(again), names(first)) {
		t.Errorf("the same claim: %v, %v", names(again), err)
	}
	other := *old
	other.UID = "b"
	if _, err := r.PrepareClaim(t.Context(), &other); err == nil || !strings.Contains(err.Error(), "is not on the node any more") {
		t.Errorf("another claim of the old GPU: %v", err)
	}
	if _, err := r.PrepareClaim(t.Context(), wants(r, "c", 0)); err != nil {
		t.Errorf("a claim of the new GPU: %v", err)
	}
}

// A record that cannot be read is set aside and reported; that claim can be prepared again, and the others are served.
func TestRecordsOfClaims(t *testing.T) {
	for what, content := range map[string]string{
		"unexpected end of JSON input": "", "unexpected end": `{"version":1,"uid":"a","nam`, "unsupported version 2": `{"version":2,"uid":"a"}`,
		"it is of claim": `{"version":1,"uid":"b","namespace":"n","name":"b"}`, "device 0: invalid names": `{"version":1,"uid":"a","namespace":"n","name":"a","devices":[{}]}`,
	} {
		t.Run(what, func(t *testing.T) {
			r := claimRig(t)
			for i, uid := range []string{"a", "b"} {
				if _, err := r.PrepareClaim(t.Context(), wants(r, uid, i)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(r.options.StateDir, claimsDir, "a.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			r.restart()
			if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0].Reason, "claim a.json, set aside: ") || !strings.Contains(p[0].Reason, what) {
				t.Errorf("problems %v", p)
			}
			if c := r.Claims(); len(c) != 1 || c["b"] == nil {
				t.Errorf("claims %v", c)
			}
			if _, err := r.PrepareClaim(t.Context(), wants(r, "a", 0)); err != nil {
				t.Error(err)
			}
			if err := errors.Join(r.UnprepareClaim("a"), r.UnprepareClaim("b")); err != nil {
				t.Error(err)
			}
			r.pass(unclaimedFor * 2)
			r.collect()
			if files := r.claimFiles(); len(files) > 0 {
				t.Errorf("left %v", files)
			}
		})
	}
}

// A full directory leaves nothing, and the claim is prepared once there is room.
func TestClaimsOnAFullDisk(t *testing.T) {
	for _, sub := range []string{"cdi", "state/claims"} {
		t.Run(sub, func(t *testing.T) {
			dir := t.TempDir()
			r := claimRig(t).in(dir)
			full := filepath.Join(dir, sub)
			mounted(t, full, 0)
			for size := 16 << 10; size > 0; size /= 2 {
				_ = os.WriteFile(filepath.Join(full, "full-"+strings.Repeat("x", size>>10)), make([]byte, size), 0o600)
			}
			_, err := r.PrepareClaim(t.Context(), wants(r, "a", 0))
			if err == nil || !strings.Contains(err.Error(), "no space left") || len(r.Problems()) == 0 {
				t.Errorf("%v, problems %v", err, r.Problems())
			}
			if err := unix.Unmount(full, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			if files := r.claimFiles(); len(files) > 0 || len(r.Claims()) > 0 {
				t.Errorf("left %v, claims %v", files, r.Claims())
			}
			if _, err := r.PrepareClaim(t.Context(), wants(r, "a", 0)); err != nil || len(r.Problems()) > 0 {
				t.Errorf("%v, problems %v", err, r.Problems())
			}
		})
	}
}

// limited is a limiter of one enforcer.
type limited config.Enforcer

func (l limited) Edits(context.Context, *enforce.Limit) (*specs.ContainerEdits, enforce.Enforced, error) {
	return &specs.ContainerEdits{}, enforce.Enforced{Memory: config.Enforcer(l)}, nil
}

// A share is for one container at a time where its enforcer limits each container.
func TestShareOfOneContainer(t *testing.T) {
	for enforcer, want := range map[config.Enforcer]bool{
		config.EnforceDMem: true, config.EnforceMPS: true, config.EnforcePreload: false, config.EnforceNone: false,
	} {
		r := claimRig(t)
		r.options.Limiter = limited(enforcer)
		r.restart()
		if _, err := r.PrepareClaim(t.Context(), shares(r, "a", 0, 30, 1024)); err != nil {
			t.Fatal(err)
		}
		alone := false
		for _, file := range r.claimFiles() {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			alone = alone || strings.Contains(string(text), `"alone"`)
		}
		if alone != want {
			t.Errorf("%s: for one container: %t, want %t", enforcer, alone, want)
		}
	}
}
