package allocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// MaxMemoryMiB bounds a GPU's memory and a share's: 64 TiB, so that no sum of
// shares overflows.
const MaxMemoryMiB = 1 << 26

// MaxReason bounds [GPU.Reason], in bytes.
const MaxReason = 256

// MaxContainers and MaxGPUs bound the lists of a pod's containers and of a node's or
// a container's GPUs.
const (
	MaxContainers = 512
	MaxGPUs       = 64
)

// MaxText bounds an annotation, in bytes; the API server has the same limit for all of an object.
const MaxText = 256 << 10

const (
	maxSlots = 1 << 16
	maxIndex = 1 << 16
	maxName  = 253
	maxUUID  = 128
)

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // Never: these types hold nothing but strings and numbers.
	}
	return string(b)
}

// parse reads an annotation of heddle's and checks it; what names it in errors. A
// field that is not known changes what the rest means.
func parse[T any](what, text string, check func(*T) error) (*T, error) {
	value := new(T)
	err := Decode(text, value)
	if err == nil {
		err = check(value)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return value, nil
}

// Decode reads one JSON value without unknown fields, the text of an annotation.
func Decode(text string, into any) error {
	if len(text) > MaxText {
		return fmt.Errorf("longer than %d bytes", MaxText)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("empty")
		}
		return Clipped(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON")
	}
	return nil
}

// Clipped bounds an error of encoding/json, which repeats the name of a field, or a number, whole.
func Clipped(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(wellknown.ClipTo(err.Error(), 200))
}

// checkPod checks an annotation of a pod up to its first fault, in the order of the containers'
// names: the fault goes into an Event, which must not change.
func checkPod[C any](version int, node string, containers map[string]C, check func(C) error) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	if node == "" || len(node) > maxName {
		return fmt.Errorf("invalid node name %q", wellknown.Clip(node))
	}
	if len(containers) > MaxContainers {
		return fmt.Errorf("%d containers; at most %d", len(containers), MaxContainers)
	}
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		if !isLabel(name) {
			return fmt.Errorf("invalid container name %q", wellknown.Clip(name))
		}
		if err := check(containers[name]); err != nil {
			return fmt.Errorf("container %q: %w", name, err)
		}
	}
	return nil
}

func checkVersion(version int) error {
	if version != Version {
		return fmt.Errorf("version %d is unknown, %d is known", version, Version)
	}
	return nil
}

// isLabel reports whether s is an RFC 1123 label, as container names and policies
// are.
func isLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }

func checkPolicy(policy string) error {
	if !isLabel(policy) {
		return fmt.Errorf("invalid policy %q", wellknown.Clip(policy))
	}
	return nil
}

// CheckShares checks the shares of one container, which are of different GPUs.
func CheckShares(shares []Share) error {
	if len(shares) == 0 || len(shares) > MaxGPUs {
		return fmt.Errorf("%d shares; a container has 1 to %d", len(shares), MaxGPUs)
	}
	for i, s := range shares {
		err := errors.Join(
			CheckUUID(s.UUID), within("vcore", int64(s.VCore), 100), within("memoryMiB", s.MemoryMiB, MaxMemoryMiB))
		if err != nil {
			return fmt.Errorf("share %d: %w", i, err)
		}
		for _, other := range shares[:i] {
			if other.UUID == s.UUID {
				return fmt.Errorf("duplicate GPU %s; shares of a container must be on different GPUs", s.UUID)
			}
		}
	}
	return nil
}

// CheckUUID accepts letters, digits and -_.:/, none of them special in a comma
// list of UUIDs.
func CheckUUID(uuid string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/"
	if uuid == "" || len(uuid) > maxUUID || strings.Trim(uuid, allowed) != "" {
		return fmt.Errorf("invalid UUID %q", wellknown.Clip(uuid))
	}
	return nil
}

func within(name string, value, most int64) error {
	if value < 0 || value > most {
		return fmt.Errorf("%s: %d is not between 0 and %d", name, value, most)
	}
	return nil
}
