package devicestate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// claimRig is a node whose GPUs are in mode claims.
func claimRig(tb testing.TB) *rig {
	tb.Helper()
	r := newRig(tb, func(c *config.NodeConfig) { c.Mode = config.ModeClaims })
	r.options.Hook = "/heddle-cdi-hook"
	r.restart()
	return r
}

// wants is a claim of whole GPUs of the machine.
func wants(r *rig, uid string, at ...int) *allocate.Claim {
	c := allocate.NewClaim(uid, "default", uid)
	for _, i := range at {
		uuid := r.machine.GPUs[i].UUID
		c.Devices = append(c.Devices, allocate.ClaimDevice{Request: fmt.Sprint("gpu-", i), Pool: "n", Device: uuid, GPU: uuid})
	}
	return c
}

// shares is a claim of a part of one GPU.
func shares(r *rig, uid string, at, vcore int, memory int64) *allocate.Claim {
	c := wants(r, uid, at)
	c.Devices[0].Share = &allocation.Share{UUID: c.Devices[0].GPU, VCore: vcore, MemoryMiB: memory}
	return c
}

// files are the names of the claim's files, without directories.
func (r *rig) claimFiles() (all []string) {
	for _, pattern := range []string{
		filepath.Join(r.options.CDIDir, "heddle-claim-*"), filepath.Join(r.options.StateDir, claimsDir, "*"),
		filepath.Join(r.options.StateDir, "devices", "*"),
	} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	return all
}

func TestClaimLifecycle(t *testing.T) {
	r := claimRig(t)
	first, err := r.PrepareClaim(t.Context(), wants(r, "a", 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if files := r.claimFiles(); len(files) != 3 {
		t.Errorf("files %v, want two specs and a record", files)
	}
	var same sync.WaitGroup
	for range 8 { // A kubelet that asks again, or several at once, get the same answer.
		same.Go(func() {
			if again, err := r.PrepareClaim(t.Context(), wants(r, "a", 0, 1)); err != nil || !slices.Equal(names(again), names(first)) {
				t.Errorf("%v, %v, want %v", names(again), err, names(first))
			}
		})
	}
	same.Wait()
	for what, claim := range map[string]*allocate.Claim{
		"held by claim default/a":                wants(r, "b", 1),
		"it is prepared with other devices":      wants(r, "a", 2),
		"GPU GPU-gone is not on the node":        {Version: 1, UID: "c", Namespace: "default", Name: "c", Devices: []allocate.ClaimDevice{{Request: "r", Device: "d", GPU: "GPU-gone"}}},
		"HCA 0000:ff:00.0 is not on the node":    {Version: 1, UID: "c", Namespace: "default", Name: "c", Devices: []allocate.ClaimDevice{{Request: "r", Device: "d", HCA: "0000:ff:00.0"}}},
		"is held by claim default/d":             wants(r, "d", 3, 3),
		"is held by claim default/a":             shares(r, "e", 0, 10, 1024),
		"have 110 % of compute":                  shares(r, "f", 4, 110, 1024),
		"HCA not-an-hca is not on the node any ": {Version: 1, UID: "g", Namespace: "default", Name: "g", Devices: []allocate.ClaimDevice{{Request: "r", Device: "d", HCA: "not-an-hca"}}},
	} {
		if _, err := r.PrepareClaim(t.Context(), claim); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q in it", err, what)
		}
	}
	if files := r.claimFiles(); len(files) != 3 {
		t.Errorf("claims that were refused left %v", files)
	}
	for range 2 {
		if err := r.UnprepareClaim("a"); err != nil {
			t.Error(err)
		}
	}
	if files := r.claimFiles(); len(files) != 0 {
		t.Errorf("left %v", files)
	}
	if _, err := r.PrepareClaim(t.Context(), wants(r, "b", 1)); err != nil {
		t.Error(err)
	}
}

func names(c *allocate.Claim) (all []string) {
	if c != nil {
		for i := range c.Devices {
			all = append(all, c.Devices[i].CDIName().String())
		}
	}
	return all
}

func TestSharesOfClaims(t *testing.T) {
	r := claimRig(t)
	for _, uid := range []string{"a", "b", "c"} {
		if _, err := r.PrepareClaim(t.Context(), shares(r, uid, 0, 30, 24<<10)); err != nil {
			t.Error(err)
		}
	}
	_, err := r.PrepareClaim(t.Context(), shares(r, "d", 0, 30, 24<<10))
	if err == nil || !strings.Contains(err.Error(), "all claims together have 120 % of compute") {
		t.Error(err)
	}
	if _, err := r.PrepareClaim(t.Context(), wants(r, "e", 0)); err == nil || !strings.Contains(err.Error(), "is held by claim default/a") {
		t.Error(err)
	}
	used := wants(r, "used", 1)
	used.Pods = []kubelet.Pod{{Namespace: "default", Name: "trainer", UID: "uid-trainer"}}
	if _, err := r.PrepareClaim(t.Context(), used); err != nil {
		t.Error(err)
	}
	if all := r.View().Allocations(); len(all) != 1 || all[0].Claim != "used" || all[0].Pod != "trainer" || !slices.Equal(all[0].GPUs, r.gpuIDs(1)) {
		t.Errorf("bindings %+v", all)
	}
	if limits := r.View().Limits(); len(limits) != 3 {
		t.Errorf("limits of %d shares", len(limits))
	}
}

// The last fence: what the device plugin gave out, or may give out, no claim gets, and the other way round.
func TestTwoAPIsOneGPU(t *testing.T) {
	r := claimRig(t)
	held := r.machine.GPUs[2].UUID
	if _, err := r.PrepareClaim(t.Context(), wants(r, "a", 2)); err != nil {
		t.Fatal(err)
	}
	native := func(inv *inventory.Inventory) {
		for uuid, g := range inv.GPUs {
			g.Mode = config.ModeNative
			inv.GPUs[uuid] = g
		}
	}
	r.change = native
	r.Update(r.inventory())
	if _, err := r.PrepareClaim(t.Context(), wants(r, "b", 3)); err == nil || !strings.Contains(err.Error(), "is not allocated by claims: its mode is native") {
		t.Error(err)
	}
	want := asks{gpus: {held}}
	r.allocate(pod("plugin"), "main", want)
	if err := r.Prepare(t.Context(), gpus, want[gpus]); err == nil || !strings.Contains(err.Error(), "is held by claim default/a") {
		t.Error(err)
	}
	if all := r.held(); !slices.Contains(all, "claim default/a "+held) {
		t.Errorf("held: %v", all)
	}
	// A pod of the plugin that the modes do not know of.
	other := asks{gpus: r.gpuIDs(5)}
	r.allocate(pod("other"), "main", other)
	r.start(other)
	r.change = func(*inventory.Inventory) {}
	r.Update(r.inventory())
	if _, err := r.PrepareClaim(t.Context(), wants(r, "c", 5)); err == nil || !strings.Contains(err.Error(), "is held by container main of default/other") {
		t.Error(err)
	}
}

func TestClaimsAfterARestart(t *testing.T) {
	r := claimRig(t)
	for i, uid := range []string{"a", "b"} {
		if _, err := r.PrepareClaim(t.Context(), wants(r, uid, i)); err != nil {
			t.Fatal(err)
		}
	}
	before := r.claimFiles()
	if err := os.RemoveAll(r.options.CDIDir); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.RestoreClaims(t.Context(), true); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(r.options.CDIDir); err != nil {
		t.Fatal(err)
	}
	if err := r.RestoreClaims(t.Context(), false); err != nil {
		t.Error(err)
	}
	if after := r.claimFiles(); !slices.Equal(before, after) {
		t.Errorf("files %v, before %v", after, before)
	}
	r.pass(unclaimedFor * 2)
	r.collect()
	if after := r.claimFiles(); !slices.Equal(before, after) {
		t.Errorf("files after a search for leftovers %v, before %v", after, before)
	}
	// One record is cut: that claim is set aside, the other is served.
	if err := os.WriteFile(filepath.Join(r.options.StateDir, claimsDir, "a.json"), []byte(`{"version":1,"uid":`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if p := r.Problems(); len(p) != 1 || p[0].Name != problemClaims || !strings.Contains(p[0].Reason, "claim a.json, set aside") {
		t.Errorf("problems %v", p)
	}
	if got := r.Claims(); len(got) != 1 || got["b"] == nil {
		t.Errorf("claims %v", got)
	}
	if err := errors.Join(r.UnprepareClaim("a"), r.UnprepareClaim("b")); err != nil {
		t.Error(err)
	}
	if err := r.UnprepareClaim("../x"); err == nil {
		t.Error("a UID that leads elsewhere was taken")
	}
}

// What cannot be written leaves nothing, and the claim is prepared once it can be.
func TestClaimsWithoutRoom(t *testing.T) {
	r := claimRig(t)
	mounted(t, r.options.CDIDir, unix.MS_RDONLY)
	_, err := r.PrepareClaim(t.Context(), wants(r, "a", 0))
	if err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Error(err)
	}
	if err := unix.Unmount(r.options.CDIDir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if files := r.claimFiles(); len(files) != 0 || len(r.Claims()) != 0 {
		t.Errorf("left %v, claims %v", files, r.Claims())
	}
	if _, err := r.PrepareClaim(t.Context(), wants(r, "a", 0)); err != nil {
		t.Error(err)
	}
}

func FuzzClaim(f *testing.F) {
	f.Add([]byte(`{"version":1,"uid":"a","namespace":"n","name":"c","devices":[{"request":"r","pool":"p","device":"d","cdi":"0123456789ab-0123456789abcdef","gpu":"GPU-a"}]}`))
	f.Add([]byte(`{"version":2,"uid":"a"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := allocate.ParseClaim(text, "a")
		if err != nil {
			return
		}
		for i := range c.Devices {
			if _, ok := cdi.ParseName(c.Devices[i].CDIName().String()); !ok || c.UID != "a" {
				t.Errorf("%+v of %q", c.Devices[i], text)
			}
		}
	})
}
