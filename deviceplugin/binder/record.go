package binder

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// vendor is the part of our CDI names before the slash.
const vendor = "heddle.dev"

// The kinds of what is bound: the class of a CDI name.
const (
	kindGPU  = "gpu"
	kindRDMA = "rdma"
	kindSGPU = "sgpu"
)

func kinds() []string { return []string{kindGPU, kindRDMA, kindSGPU} }

// slotMark is between the card and the slot of a share's ticket:
// GPU-…::3.
const slotMark = "::"

// record is one answer of Allocate: the CDI name that was given out, what for,
// and once known, to whom and what it stands for. It is a file of its own,
// named as the device.
type record struct {
	// Kind and Device are the CDI name: heddle.dev/<kind>=<device>.
	Kind     string    `json:"kind"`
	Device   string    `json:"device"`
	Resource string    `json:"resource"`
	IDs      []string  `json:"ids"`
	Created  time.Time `json:"created"`
	// Owner is nil until the container starts for the first time.
	Owner *owner `json:"owner,omitempty"`
	// HCAs are the identities of the HCAs that the tickets in IDs are bound
	// to, in the order of IDs; empty for a ticket that got none.
	HCAs []string `json:"hcas,omitempty"`
	// Extra are the HCAs beyond the tickets (count all).
	Extra []string `json:"extra,omitempty"`
	// Class is the longest way from one of the HCAs to the nearest GPU.
	Class string `json:"class,omitempty"`

	// Shares are the cards that the tickets in IDs are bound to, in the order of
	// IDs; Policy is the QoS policy of all, By who chose the cards, as in package
	// allocation. Without shares nothing was decided yet.
	Shares []allocation.Share `json:"shares,omitempty"`
	Policy string             `json:"policy,omitempty"`
	By     string             `json:"by,omitempty"`
	// Turn is when the container with the shares runs, RunAs its user as far as
	// its pod says, Enforced what its limits were first made to hold by.
	Turn     quota.Phase      `json:"turn,omitzero"`
	RunAs    *int64           `json:"runAs,omitempty"`
	Enforced enforce.Enforced `json:"enforced,omitzero"`

	// decided numbers the decision that made it so; 0 for those from disk.
	decided uint64
}

func (r *record) name() string { return vendor + "/" + r.Kind + "=" + r.Device }

// bound lists the HCAs, without repeats.
func (r *record) bound() []string {
	ids := slices.Concat(r.HCAs, r.Extra)
	return slices.Compact(slices.DeleteFunc(sorted(ids), func(id string) bool { return id == "" }))
}

func (r *record) clone() *record {
	c := *r
	c.HCAs, c.Extra, c.Shares = slices.Clone(r.HCAs), slices.Clone(r.Extra), slices.Clone(r.Shares)
	if r.Owner != nil {
		o := *r.Owner
		c.Owner = &o
	}
	return &c
}

// digest of the IDs makes a name tell what it was made for; the nonce makes it
// one that nobody had before.
const (
	digestLength = 12
	nonceLength  = 16
)

func digest(resource string, ids []string) string {
	sum := sha256.Sum256([]byte(resource + "\x00" + strings.Join(ids, "\x00")))
	return hex.EncodeToString(sum[:])[:digestLength]
}

func nonce() string {
	var b [nonceLength / 2]byte
	_, _ = rand.Read(b[:]) // Never fails: crypto/rand ends the process instead.
	return hex.EncodeToString(b[:])
}

// isDevice tells whether a word looks like a device of ours. Names come back
// from the kubelet's checkpoint, all of them at every start, and become file
// names.
func isDevice(word string) bool {
	if len(word) != digestLength+1+nonceLength {
		return false
	}
	for i, c := range []byte(word) {
		hexadecimal := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if i == digestLength && c != '-' || i != digestLength && !hexadecimal {
			return false
		}
	}
	return true
}

// parseName splits a CDI name of ours.
func parseName(name string) (kind, device string, ok bool) {
	rest, ok := strings.CutPrefix(name, vendor+"/")
	if !ok {
		return "", "", false
	}
	kind, device, ok = strings.Cut(rest, "=")
	if !ok || !isDevice(device) || kind != kindGPU && kind != kindRDMA && kind != kindSGPU {
		return "", "", false
	}
	return kind, device, true
}

// The folders of the state directory, and the ending of their files.
const (
	recordDir = "records"
	deviceDir = "devices"
	jsonEnd   = ".json"
	// corruptEnd takes a record that does not parse out of the way, for a
	// person to read.
	corruptEnd = ".corrupt"
)

// loadRecords reads all records. What cannot be read is told and left out.
func loadRecords(dir string) (map[string]*record, error) {
	records := make(map[string]*record)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return records, nil
	}
	if err != nil {
		return records, fmt.Errorf("records: %w", err)
	}
	var errs []error
	for _, e := range entries {
		device, ok := strings.CutSuffix(e.Name(), jsonEnd)
		if !ok || !isDevice(device) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		r, err := readRecord(path, device)
		if err != nil {
			errs = append(errs, fmt.Errorf("record %s, set aside: %w", e.Name(), err), os.Rename(path, path+corruptEnd))
			continue
		}
		records[device] = r
	}
	return records, errors.Join(errs...)
}

func readRecord(path, device string) (*record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	switch kind, name, ok := parseName(r.name()); {
	case !ok || name != device:
		return nil, fmt.Errorf("it is of %q", r.name())
	case kind == "" || r.Resource == "" || len(r.IDs) == 0:
		return nil, errors.New("resource or device IDs are missing")
	case len(r.HCAs) > len(r.IDs):
		return nil, errors.New("more HCAs than device IDs")
	case len(r.Shares) > 0 && (len(r.Shares) != len(r.IDs) || r.Owner == nil):
		return nil, errors.New("shares that are not of its device IDs, or nobody's")
	case !strings.HasPrefix(device, digest(r.Resource, r.IDs)):
		return nil, errors.New("its name was made for other device IDs")
	}
	if err := wellknown.CheckResource(r.Resource); err != nil {
		return nil, fmt.Errorf("its resource: %w", err)
	}
	return &r, nil
}
