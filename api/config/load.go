package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The keys of the ConfigMap.
const (
	KeyVersion = "version"
	KeyCluster = "cluster-config"
	KeyNodes   = "nodes-config"
)

// Version is the value of the key version.
const Version = "v1"

// MaxFile is the largest key that is read, in bytes: a ConfigMap holds no more.
const MaxFile = 1 << 20

// MaxRules is how many label rules a node can have.
const MaxRules = 64

// Load reads a directory that has the ConfigMap's keys as files, as the kubelet
// mounts it. An empty directory is the default configuration; one that does
// not exist is an error. Every fault is in the error, each a [Fault].
func Load(dir string, rules RuleLanguage) (*Config, error) {
	files, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	return Parse(files, rules)
}

// readDir reads the keys of a directory. The kubelet removes a version as soon
// as ..data points to the next, also under a reader's hands.
func readDir(dir string) (files map[string][]byte, err error) {
	for range 3 {
		if files, err = readVersion(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return files, err
}

func readVersion(dir string) (map[string][]byte, error) {
	// The kubelet renames the link ..data; reading below its target keeps the
	// keys of one version together.
	if target, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = target
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		if files[name], err = read(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
	}
	return files, nil
}

// read reads at most one byte more than allowed, which Parse then reports.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFile+1))
}

// Parse reads the ConfigMap's keys.
func Parse(files map[string][]byte, rules RuleLanguage) (*Config, error) {
	l := loader{
		compiler: rules.NewCompiler(),
		cluster:  parse(KeyCluster, files[KeyCluster], reflect.TypeFor[NodeConfig]()),
		nodes:    parse(KeyNodes, files[KeyNodes], reflect.TypeFor[[]Override]()),
	}
	l.checkFiles(files)
	l.errs = slices.Concat(l.errs, l.cluster.faults, l.nodes.faults)
	var c *Config
	if l.errs == nil {
		c = l.build()
	}
	if l.errs != nil {
		return nil, errors.Join(l.errs...)
	}
	return c, nil
}

type loader struct {
	compiler       RuleCompiler
	cluster, nodes *document
	errs           []error
}

func (l *loader) fault(file string, line int, at, format string, args ...any) {
	l.errs = append(l.errs, &Fault{File: file, Line: line, Path: at, Err: fmt.Errorf(format, args...)})
}

func (l *loader) checkFiles(files map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case name != KeyVersion && name != KeyCluster && name != KeyNodes:
			l.fault(name, 0, "", "unknown key; known are %s, %s and %s", KeyVersion, KeyCluster, KeyNodes)
		case len(files[name]) > MaxFile:
			l.fault(name, 0, "", "more than %d bytes", MaxFile)
		}
	}
	version, ok := files[KeyVersion]
	switch {
	case !ok && len(files) > 0:
		l.fault(KeyVersion, 0, "", "is missing: write %s", Version)
	case ok && strings.TrimSpace(string(version)) != Version:
		l.fault(KeyVersion, 1, "", "%.20q is not %s", string(version), Version)
	}
}

// build merges the layers: defaults, the cluster's, the override's.
func (l *loader) build() *Config {
	c := &Config{Cluster: defaults()}
	l.decode(l.cluster, l.cluster.root, &c.Cluster)
	c.Cluster.applyPreset(l.cluster.lines["taints.gpuProduct"] > 0)
	known := map[string]bool{}
	for _, f := range c.Cluster.complete(l.compiler) {
		known[f.Error()] = true
		f.File = KeyCluster
		f.Line, _ = l.cluster.place("", f.Path)
		l.errs = append(l.errs, f)
	}
	if l.nodes.root == nil {
		return c
	}
	for i, item := range l.nodes.root.Content {
		o := Override{NodeConfig: defaults()}
		l.decode(l.cluster, l.cluster.root, &o.NodeConfig)
		l.decode(l.nodes, item, &o)
		at := fmt.Sprintf("[%d]", i)
		o.applyPreset(l.cluster.lines["taints.gpuProduct"]+l.nodes.lines[at+".taints.gpuProduct"] > 0)
		for _, f := range o.complete(l.compiler) {
			if line, ok := l.nodes.place(at, f.Path); ok {
				l.fault(KeyNodes, line, join(at, f.Path), "%w", f.Err)
			} else if !known[f.Error()] {
				// The override made it a fault; the text is the cluster's.
				line, _ := l.cluster.place("", f.Path)
				l.fault(KeyCluster, line, f.Path, "%w (with %s%s)", f.Err, KeyNodes, at)
			}
		}
		c.Overrides = append(c.Overrides, o)
	}
	// Every section is known now, and with it every label that one may write.
	for i := range c.Overrides {
		at := fmt.Sprintf("[%d]", i)
		for _, f := range c.checkChoice(&c.Overrides[i]) {
			line, _ := l.nodes.place(at, f.Path)
			l.fault(KeyNodes, line, join(at, f.Path), "%w", f.Err)
		}
	}
	return c
}

func (l *loader) decode(d *document, n *yaml.Node, into any) {
	if n == nil {
		return
	}
	if err := n.Decode(into); err != nil {
		l.fault(d.file, n.Line, "", "%w", err)
	}
}
