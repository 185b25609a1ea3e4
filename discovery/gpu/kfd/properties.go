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
// files of that form below it. An incomplete file or one of another form is an error.
func parseProperties(text string) (properties, error) {
	p := properties{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "" {
			return nil, fmt.Errorf("invalid line %.60q: want name and number", line)
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("property %.60q: %w", name, errors.Unwrap(err))
		}
		if p[name] = n; len(p) > maxProperties {
			return nil, fmt.Errorf("more than %d properties", maxProperties)
		}
	}
	return p, nil
}

// need are the first of the names that are not there.
func (p properties) need(names ...string) error {
	for _, name := range names {
		if _, ok := p[name]; !ok {
			return fmt.Errorf("no property %s, the file is cut off", name)
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
	p, err := parseProperties(text)
	if err == nil {
		err = p.need(names...)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", fs.Path(path), err)
	}
	return p, nil
}

// readEach reads DIR/N/properties: the links of a node, or its memory banks.
func readEach(fs sysfs.FS, dir string, names ...string) ([]properties, error) {
	numbers, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var all []properties
	for _, number := range numbers[:min(len(numbers), maxNodes)] {
		p, err := readProperties(fs, dir+"/"+number+"/properties", names...)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// parseErrors reads a RAS counter, RAS_BLOCK_err_count or aca_BLOCK:
//
//	ue: 0
//	ce: 12
//
// The first is the uncorrectable errors since the driver was loaded.
func parseErrors(text string) (uncorrectable uint64, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "ue" {
			continue
		}
		if uncorrectable, err = strconv.ParseUint(strings.TrimSpace(value), 10, 64); err != nil {
			return 0, fmt.Errorf("parse uncorrectable errors: %w", err)
		}
		return uncorrectable, nil
	}
	return 0, fmt.Errorf("no uncorrectable errors in %.60q", text)
}
