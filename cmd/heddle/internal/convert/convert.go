// Package convert is `heddle config convert`: it makes heddle's configuration
// of the one that another device plugin had.
package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

// The formats that are read.
const (
	nvidia   = "nvidia"
	hami     = "hami"
	mellanox = "mellanox"
)

// NewCommand is `heddle config convert`.
func NewCommand() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "convert --from nvidia|hami|mellanox FILE", Short: "Make a configuration of another device plugin's",
		Long: `Print the key cluster-config, made from the configuration of another plugin:
nvidia    the file of NVIDIA's k8s-device-plugin, version v1
hami      HAMi's device-config.yaml, or its config.json of nodes
mellanox  config.json of Mellanox's k8s-rdma-shared-dev-plugin
each alone, or in its ConfigMap, such as that of the GPU operator. It prints the
key nodes-config instead for several files of NVIDIA's in one ConfigMap, and for
HAMi's file of nodes.

What could not be carried over, or means something else here, is a comment above
it and a line on stderr. FILE may be - for stdin.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains([]string{nvidia, hami, mellanox}, from) {
				return cli.UsageErrorf(c, "--from is nvidia, hami or mellanox, not %q", from)
			}
			text, err := cli.Read(c, args[0])
			if err != nil {
				return err
			}
			result, err := Convert(from, text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			for _, note := range result.Notes {
				if _, err := fmt.Fprintln(c.ErrOrStderr(), note); err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
			return cli.Write(c, result.String())
		},
	}
	c.Flags().StringVar(&from, "from", "", "`format` of FILE: nvidia, hami or mellanox")
	cli.Complete(c, "from", nvidia, hami, mellanox)
	return c
}

// Result is heddle's configuration.
type Result struct {
	// Key is cluster-config or nodes-config, and Config its value.
	Key, Config string
	// Notes name what was not carried over, or means something else, one line each.
	Notes []string

	keys map[string]any
	// nodes are the entries of nodes-config, if it is that.
	nodes []any
}

// String returns the configuration below its notes as comments.
func (r *Result) String() string {
	var b strings.Builder
	if r.Key == config.KeyNodes {
		b.WriteString("# The key " + r.Key + ".\n")
	}
	for _, note := range r.Notes {
		b.WriteString("# " + note + "\n")
	}
	return b.String() + r.Config
}

func (r *Result) notef(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Convert reads the configuration of a peer. What it returns is valid.
func Convert(from string, text []byte) (*Result, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	name := map[string]string{hami: "device-config.yaml", mellanox: "config.json"}[from]
	files, err := unwrap(root, name)
	if err != nil {
		return nil, err
	}
	r := &Result{Key: config.KeyCluster, keys: map[string]any{}}
	switch {
	case len(files) > 1 && from != nvidia:
		return nil, fmt.Errorf("data: none of the ConfigMap's %d keys is %s", len(files), name)
	case len(files) > 1:
		r.nvidiaNodes(files)
	case from == nvidia:
		r.nvidia(files[0])
	case from == hami && files[0].fields["nodeconfig"] != nil:
		r.hamiNodes(files[0])
	case from == hami:
		r.hami(files[0])
	default:
		r.mellanox(files[0])
	}
	if *root.fault != nil {
		return nil, *root.fault
	}
	for _, path := range root.left() {
		r.notef("%s: not carried over", path)
	}
	var value any = r.keys
	if r.nodes != nil {
		r.Key, value = config.KeyNodes, r.nodes
	}
	out, err := yaml.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	r.Config = string(out)
	keys := map[string][]byte{config.KeyVersion: []byte(config.Version), r.Key: out}
	if _, err := config.Parse(keys, &rule.CEL{}); err != nil {
		return nil, fmt.Errorf("the result is invalid: %w", err)
	}
	return r, nil
}

// node makes an entry of nodes-config.
func (r *Result) node(entry map[string]any, read func(*Result)) {
	one := &Result{keys: entry}
	read(one)
	r.Notes, r.nodes = append(r.Notes, one.Notes...), append(r.nodes, one.keys)
}

// maxSlots is the end of the range of sgpu.slotsPerGPU.
const maxSlots = 100

// share gives every GPU slots, and notes what pods must change.
func (r *Result) share(path string, slots int) map[string]any {
	sgpu := map[string]any{"slotsPerGPU": r.slots(path, slots)}
	r.keys["mode"], r.keys["sgpu"] = string(config.ModeSGPU), sgpu
	return sgpu
}

// slots returns a number of slots, no more than a GPU can have.
func (r *Result) slots(path string, slots int) int {
	if slots > maxSlots {
		r.notef("%s: %d is more than %d slots of a GPU", path, slots, maxSlots)
	}
	return min(slots, maxSlots)
}

// section is one mapping of a peer's configuration. Reading a key removes it, so that the remaining
// keys are the ones without a translation.
type section struct {
	path string
	// key names a file in a ConfigMap.
	key    string
	fields map[string]any
	subs   []*section
	// fault is the first of the whole file. Who reads goes on, as over an empty file.
	fault *error
}

func parse(text []byte) (*section, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("not a mapping in YAML or JSON: %w", err)
	}
	return &section{fields: fields, fault: new(error)}, nil
}

// unwrap finds the files in a ConfigMap: the key of that name, or all keys; other content is the
// file itself. Other keys stay in the ConfigMap.
func unwrap(root *section, name string) (files []*section, err error) {
	data, ok := root.fields["data"].(map[string]any)
	if !ok {
		return []*section{root}, nil
	}
	keys := slices.Sorted(maps.Keys(data))
	if _, found := data[name]; found {
		keys = []string{name}
	}
	if len(keys) == 0 {
		return nil, errors.New("data: the ConfigMap is empty")
	}
	below := root.sub("data")
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		delete(root.fields, key)
	}
	for _, key := range keys {
		inner, err := parse([]byte(take[string](below, key)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", below.at(key), err)
		}
		inner.fault, inner.key = root.fault, key
		if len(keys) > 1 {
			inner.path = below.at(key)
		}
		files, root.subs = append(files, inner), append(root.subs, inner)
	}
	return files, nil
}

// at returns the place of a key. A key is any text, and a comment is one line.
func (s *section) at(key string) string {
	if quoted := strconv.QuoteToASCII(key); quoted != `"`+key+`"` {
		key = quoted
	}
	return strings.TrimPrefix(s.path+"."+key, ".")
}

func (s *section) failf(format string, args ...any) {
	if *s.fault == nil {
		*s.fault = fmt.Errorf(format, args...)
	}
}

// take removes a value of a type; a key that is absent or null gives zero.
func take[T any](s *section, key string) T {
	value := s.fields[key]
	delete(s.fields, key)
	typed, ok := value.(T)
	if value != nil && !ok {
		s.failf("%s: %T is not of type %T", s.at(key), value, typed)
	}
	return typed
}

// sub returns a mapping below; one that is absent is empty.
func (s *section) sub(key string) *section {
	below := &section{path: s.at(key), fields: take[map[string]any](s, key), fault: s.fault}
	s.subs = append(s.subs, below)
	return below
}

// list returns the mappings of a list.
func (s *section) list(key string) []*section {
	var list []*section
	for i, entry := range take[[]any](s, key) {
		path := fmt.Sprintf("%s[%d]", s.at(key), i)
		fields, ok := entry.(map[string]any)
		if !ok {
			s.failf("%s: %T is not a mapping", path, entry)
		}
		list = append(list, &section{path: path, fields: fields, fault: s.fault})
	}
	s.subs = append(s.subs, list...)
	return list
}

// left returns the place of everything that was not taken.
func (s *section) left() []string {
	var paths []string
	for _, key := range slices.Sorted(maps.Keys(s.fields)) {
		paths = append(paths, s.at(key))
	}
	for _, below := range s.subs {
		paths = append(paths, below.left()...)
	}
	return paths
}
