package kfd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// maxProperties bounds one file; the kernel writes about 40 lines.
const maxProperties = 512

// properties are a file of the topology: a name and a number on each line.
type properties map[string]uint64

// parseProperties reads /sys/class/kfd/kfd/topology/nodes/N/properties and the
// files of that form below it. A line of another form, as a later kernel may write it, hides no other.
func parseProperties(text string) properties {
	p := properties{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if err == nil && name != "" && len(p) < maxProperties {
			p[name] = n
		}
	}
	return p
}

// need are the first of the names that are not there.
func (p properties) need(names ...string) error {
	for _, name := range names {
		if _, ok := p[name]; !ok {
			return fmt.Errorf("property %s is missing or not a number", name)
		}
	}
	return nil
}

// readProperties reads a file of the topology, which must have the properties.
func readProperties(fs sysfs.FS, path string, names ...string) (properties, error) {
	text, err := fs.Read(path)
	if err != nil {
		return nil, err
	}
	p := parseProperties(text)
	if err := p.need(names...); err != nil {
		return nil, fmt.Errorf("read %s: %w", fs.Path(path), err)
	}
	return p, nil
}

// readEach reads DIR/N/properties: the links of a node, or its memory banks. One that cannot be read hides no
// other, and is an error beside them.
func readEach(fs sysfs.FS, dir string, names ...string) (all []properties, err error) {
	numbers, err := fs.List(dir)
	errs := []error{err}
	for _, number := range numbers[:min(len(numbers), maxNodes)] {
		p, err := readProperties(fs, dir+"/"+number+"/properties", names...)
		if err == nil {
			all = append(all, p)
		}
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// parseErrors reads a RAS counter, RAS_BLOCK_err_count or aca_BLOCK:
//
//	ue: 0
//	ce: 12
//
// These are the uncorrectable errors since the driver was loaded, and the corrected ones; kind is the one to return.
func parseErrors(text, kind string) (n uint64, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != kind {
			continue
		}
		if n, err = strconv.ParseUint(strings.TrimSpace(value), 10, 64); err != nil {
			return 0, fmt.Errorf("parse %s: %w", kind, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("no %q in %.60q", kind, text)
}
