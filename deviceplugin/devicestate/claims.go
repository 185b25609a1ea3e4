package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// claimsDir is where the claims are, a file for each UID.
const claimsDir = "claims"

// claimRecords is the directory of prepared claims. Nothing is fsynced, as with [records]: after a loss of power
// the kubelet prepares all claims again.
type claimRecords struct{ path string }

// load reads all claims, by UID. What cannot be read is set aside, and the others are returned beside the error.
func (d *claimRecords) load() (map[string]*allocate.Claim, error) {
	all := map[string]*allocate.Claim{}
	files, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	var errs []error
	for _, f := range files {
		uid, ok := strings.CutSuffix(f.Name(), jsonSuffix)
		if !ok {
			continue
		}
		path := filepath.Join(d.path, f.Name())
		content, err := hostfile.Read(path)
		if err == nil {
			all[uid], err = allocate.ParseClaim(content, uid)
		}
		if err != nil {
			delete(all, uid)
			errs = append(errs, fmt.Errorf("claim %s, set aside: %w", f.Name(), err), os.Rename(path, path+corruptSuffix))
		}
	}
	return all, errors.Join(append(errs, err)...)
}

func (d *claimRecords) write(c *allocate.Claim) error {
	if err := hostfile.WriteJSON(filepath.Join(d.path, c.UID+jsonSuffix), c, 0o644, hostfile.Quick); err != nil {
		return fmt.Errorf("record of %s: %w", c, err)
	}
	return nil
}

func (d *claimRecords) remove(uid string) error {
	path := filepath.Join(d.path, uid+jsonSuffix)
	return errors.Join(hostfile.Remove(path), hostfile.Remove(path+corruptSuffix))
}

// Claims returns the prepared claims, by UID.
func (s *State) Claims() map[string]*allocate.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.claims)
}

// claim returns a prepared claim, or one that is being prepared; nil for another.
func (s *State) claim(uid string) *allocate.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[uid]
}

// PrepareClaim writes the CDI specs of a claim's devices and returns the claim as it was prepared, with their
// names. A claim that is prepared already gets the same answer. What cannot be written leaves nothing. The
// caller names the devices, the CDI names are made here.
func (s *State) PrepareClaim(ctx context.Context, c *allocate.Claim) (*allocate.Claim, error) {
	uid := c.UID
	s.starting.LockKey(uid)
	defer func() { _ = s.starting.UnlockKey(uid) }()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	c, old, err := s.reserve(c)
	if err != nil {
		return nil, err
	}
	prepared := c
	if old == nil {
		err = s.await(ctx, "", c.GPUs())
		for i := 0; err != nil && i < len(c.Pods); i++ {
			s.api.WarnPod(c.Pods[i], wellknown.EventGPUDirty, err.Error())
		}
	}
	if err == nil {
		prepared, err = s.writeClaim(ctx, c)
	}
	switch {
	case err == nil:
		s.putClaim(prepared)
	case old == nil:
		err = errors.Join(err, s.dropClaim(c))
	}
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", c, err)
	}
	if old == nil {
		s.options.Log.Info("prepared", "claim", c.Namespace+"/"+c.Name, "devices", len(c.Devices))
		s.changed.Notify()
	}
	return prepared, nil
}

// reserve checks a claim and remembers it, so that nobody else gets its devices. It returns the claim with CDI
// names: those of old if that has the same devices.
func (s *State) reserve(c *allocate.Claim) (next, old *allocate.Claim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old = s.claims[c.UID]; old != nil {
		if !old.SameDevices(c) {
			return nil, old, fmt.Errorf("prepare %s: it is prepared with other devices", c)
		}
		next = new(*old)
		next.Pods = c.Pods
		return next, old, nil
	}
	node := s.viewLocked()
	if err := node.CheckClaim(c); err != nil {
		return nil, nil, fmt.Errorf("prepare %s: %w", c, err)
	}
	next = new(*c)
	next.Devices = slices.Clone(c.Devices)
	for i := range next.Devices {
		d := &next.Devices[i]
		d.CDI = cdi.NewName(cdi.Claim, claims.Driver, []string{c.UID, d.Request, d.Device, d.ShareID}).Device
	}
	s.claims[next.UID] = next
	return next, nil, nil
}

func (s *State) putClaim(c *allocate.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims[c.UID] = c
}

// writeClaim brings the files of a claim up to date: the record, then the specs.
func (s *State) writeClaim(ctx context.Context, c *allocate.Claim) (*allocate.Claim, error) {
	node := allocate.Node{Inventory: s.inventory.Load()}
	described, nodes := node.ClaimedDevices(c)
	edits, c, err := s.claimEdits(ctx, c, node.Inventory)
	if err != nil {
		return nil, err
	}
	s.files.RLock()
	defer s.files.RUnlock()
	err = s.claimRecords.write(c)
	if s.problems.Note(problemState, err); err != nil {
		return nil, err
	}
	for i := range c.Devices {
		err = s.cdi.WriteClaimSpec(c.Devices[i].CDIName(), s.options.Hook, &described[i], nodes[i], edits[i])
		if s.problems.Note(problemCDI, err); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// claimEdits returns the edits for the limits or the channel of each device, and the claim with the enforcers of its
// limits.
func (s *State) claimEdits(
	ctx context.Context, c *allocate.Claim, inv *inventory.Inventory,
) ([][]*specs.ContainerEdits, *allocate.Claim, error) {
	all := make([][]*specs.ContainerEdits, len(c.Devices))
	limits := c.Limits(inv.Machine)
	next := new(*c)
	next.Devices = slices.Clone(c.Devices)
	for i := range next.Devices {
		d := &next.Devices[i]
		if d.Channel > 0 {
			node, err := gpu.Channel(s.options.Processes.Root, d.Channel)
			if err != nil {
				return nil, nil, fmt.Errorf("request %s: %w", d.Request, err)
			}
			all[i] = []*specs.ContainerEdits{{DeviceNodes: []*specs.DeviceNode{node}}}
		}
		l, limited := limits[i]
		if !limited || s.options.Limiter == nil {
			continue
		}
		edits, by, err := s.options.Limiter.Edits(ctx, &l)
		if err == nil && len(limits) > 1 && !together(by) {
			err = fmt.Errorf("enforcer %s of memory and %s of compute limit one share in a container, and the claim has %d",
				by.Memory, by.Compute, len(limits))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("request %s: limits: %w", d.Request, err)
		}
		all[i], d.Enforced = append(all[i], edits), by
		if perContainer(by) {
			all[i] = append(all[i], s.cdi.Alone(d.CDIName(), s.options.Hook))
		}
	}
	return all, next, nil
}

// together reports whether the limits of several shares hold in one container when each was made alone: those of
// preload and mps are variables, and a container has one value of each.
func together(by enforce.Enforced) bool {
	alone := func(e config.Enforcer) bool { return e == config.EnforcePreload || e == config.EnforceMPS }
	return !alone(by.Memory) && !alone(by.Compute)
}

// perContainer reports whether two containers with one share have its limit each.
func perContainer(by enforce.Enforced) bool {
	each := func(e config.Enforcer) bool { return e == config.EnforceDMem || e == config.EnforceMPS }
	return each(by.Memory) || each(by.Compute)
}

// UnprepareClaim removes what PrepareClaim wrote. It accepts a claim that is not prepared.
func (s *State) UnprepareClaim(uid string) error {
	s.starting.LockKey(uid)
	defer func() { _ = s.starting.UnlockKey(uid) }()
	c := s.claim(uid)
	if c == nil {
		if !isUID(uid) {
			return fmt.Errorf("invalid UID %.64q of a claim", uid)
		}
		return s.claimRecords.remove(uid) // One that was set aside.
	}
	if err := s.dropClaim(c); err != nil {
		return fmt.Errorf("unprepare %s: %w", c, err)
	}
	s.options.Log.Info("unprepared", "claim", c.Namespace+"/"+c.Name)
	s.changed.Notify()
	return nil
}

// isUID reports whether a word can be the name of a record.
func isUID(uid string) bool {
	return uid != "" && strings.Trim(uid, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == ""
}

// dropClaim removes the files of a claim, the record last, and then forgets it.
func (s *State) dropClaim(c *allocate.Claim) error {
	s.files.RLock()
	defer s.files.RUnlock()
	var errs []error
	for i := range c.Devices {
		errs = append(errs, s.cdi.Remove(c.Devices[i].CDIName()))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := s.claimRecords.remove(c.UID); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claims, c.UID)
	return nil
}

// RestoreClaims writes the specs of prepared claims again, all of them after a restart or a reboot, or those that
// another program removed from the CDI directory. The kubelet does not prepare the claims of running pods again.
func (s *State) RestoreClaims(ctx context.Context, all bool) error {
	var errs []error
	for uid, c := range s.Claims() {
		if all || s.lacksSpec(c) {
			errs = append(errs, s.restoreClaim(ctx, uid, all))
		}
	}
	err := errors.Join(errs...)
	s.problems.Note(problemClaimSpecs, err)
	return err
}

// restoreClaim restores a claim that is still prepared.
func (s *State) restoreClaim(ctx context.Context, uid string, always bool) error {
	s.starting.LockKey(uid)
	defer func() { _ = s.starting.UnlockKey(uid) }()
	c := s.claim(uid)
	if c == nil || !always && !s.lacksSpec(c) {
		return nil
	}
	prepared, err := s.writeClaim(ctx, c)
	if err != nil {
		return fmt.Errorf("restore %s: %w", c, err)
	}
	s.putClaim(prepared)
	return nil
}

func (s *State) lacksSpec(c *allocate.Claim) bool {
	return slices.ContainsFunc(c.Devices, func(d allocate.ClaimDevice) bool { return !s.cdi.HasSpec(d.CDIName()) })
}
