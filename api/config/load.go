package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/strict"
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
// not exist is an error. The error has everything that is wrong, each a [strict.Error].
func Load(dir string, rules RuleCompiler) (*Config, error) {
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
func Parse(files map[string][]byte, rules RuleCompiler) (*Config, error) {
	l := loader{
		compiler: rules,
		cluster:  strict.Read(KeyCluster, files[KeyCluster], new(NodeConfig)),
		nodes:    strict.Read(KeyNodes, files[KeyNodes], new([]Override)),
	}
	l.checkFiles(files)
	l.errs = slices.Concat(l.errs, l.cluster.Errors, l.nodes.Errors)
	c := l.build()
	if l.errs != nil {
		return nil, errors.Join(l.errs...)
	}
	return c, nil
}

type loader struct {
	compiler       RuleCompiler
	cluster, nodes *strict.Document
	errs           []error
}

func (l *loader) addf(file string, line int, at, format string, args ...any) {
	l.errs = append(l.errs, &strict.Error{File: file, Line: line, Path: at, Err: fmt.Errorf(format, args...)})
}

func (l *loader) checkFiles(files map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case name != KeyVersion && name != KeyCluster && name != KeyNodes:
			l.addf(name, 0, "", "unknown key; supported are %s, %s and %s", KeyVersion, KeyCluster, KeyNodes)
		case len(files[name]) > MaxFile:
			l.addf(name, 0, "", "more than %d bytes", MaxFile)
		}
	}
	version, ok := files[KeyVersion]
	switch {
	case !ok && len(files) > 0:
		l.addf(KeyVersion, 0, "", "is missing: write %s", Version)
	case ok && strings.TrimSpace(string(version)) != Version:
		l.addf(KeyVersion, 1, "", "unsupported version %.20q: supported is %s", string(version), Version)
	}
}

// build merges the layers: defaults, the cluster's section, the override.
func (l *loader) build() *Config {
	const gpuProduct, vendorKey = "taints.gpuProduct", "domains.vendor"
	c := &Config{Cluster: defaults()}
	l.decode(l.cluster, l.cluster.Root, KeyCluster, &c.Cluster)
	c.Cluster.applyPreset(l.cluster.Has(gpuProduct))
	c.Cluster.FixVendor(l.cluster.Has(vendorKey))
	known := map[string]bool{}
	for _, e := range c.Cluster.complete(l.compiler) {
		known[e.Error()] = true
		if !l.cluster.Failed(e.Path) {
			l.addf(KeyCluster, l.cluster.Line(e.Path), e.Path, "%w", e.Err)
		}
	}
	if l.nodes.Root == nil || l.nodes.Root.Kind != yaml.SequenceNode {
		return c
	}
	for i, item := range l.nodes.Root.Content {
		o := Override{NodeConfig: defaults()}
		l.decode(l.cluster, l.cluster.Root, KeyCluster, &o.NodeConfig)
		l.decode(l.nodes, item, KeyNodes, &o)
		at := fmt.Sprintf("[%d]", i)
		o.applyPreset(l.cluster.Has(gpuProduct) || l.nodes.Has(at+"."+gpuProduct))
		o.FixVendor(l.cluster.Has(vendorKey) || l.nodes.Has(at+"."+vendorKey))
		for _, e := range o.complete(l.compiler) {
			path := at + "." + e.Path
			switch section := strings.FieldsFunc(e.Path, func(r rune) bool { return r == '.' || r == '[' })[0]; {
			case l.nodes.Failed(path), known[e.Error()] && !l.nodes.Has(path):
			case l.nodes.Has(at + "." + section):
				l.addf(KeyNodes, l.nodes.Line(path), path, "%w", e.Err)
			default: // The override made the cluster's text invalid.
				l.addf(KeyCluster, l.cluster.Line(e.Path), e.Path, "%w (with %s%s)", e.Err, KeyNodes, at)
			}
		}
		c.Overrides = append(c.Overrides, o)
	}
	// Every section is known now, and with it every label that one may write.
	for i := range c.Overrides {
		for _, e := range c.checkChoice(&c.Overrides[i]) {
			path := strings.TrimSuffix(fmt.Sprintf("[%d].%s", i, e.Path), ".")
			l.addf(KeyNodes, l.nodes.Line(path), path, "%w", e.Err)
		}
	}
	return c
}

// decode decodes a part of a document. The document has the errors already, if it has any.
func (l *loader) decode(d *strict.Document, n *yaml.Node, file string, into any) {
	if n == nil {
		return
	}
	if err := n.Decode(into); err != nil && d.Errors == nil {
		l.addf(file, n.Line, "", "%w", err)
	}
}

// Rule is a compiled label rule. It is safe for concurrent use.
type Rule interface {
	// Eval gives the label's value; ok is false where the rule gives none: when is
	// false, or the value is empty. An error is a fault of this machine's facts or of
	// the rule.
	Eval(facts *model.Facts) (value string, ok bool, err error)
}

// RuleCompiler reads the expressions of label rules: rule.CEL, or [Uncompiled].
type RuleCompiler interface {
	// Compile compiles the rule of one label. value must be a text; when must be true or
	// false, and empty means always. It returns no rule but an error for each expression
	// that is wrong, with path value or when and the place in it.
	Compile(key, value, when string) (Rule, []*strict.Error)
}

// Uncompiled leaves the expressions as they are, for a program that writes no labels: CEL
// is 0.6 MB of a process' memory, and 6 MB with the pages of its program, before the first
// rule is read. How many rules there are, and their keys, is checked with it as well.
type Uncompiled struct{}

// Compile accepts every expression.
func (Uncompiled) Compile(string, string, string) (Rule, []*strict.Error) { return nil, nil }
