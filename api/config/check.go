package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// values checks a value and all below it against the tags of the fields: "enum" lists words, "range" is 1-100 or
// 0s-1h, "required" and "unique" are true. A type with a method Check is checked by it.
func (v *validator) values(x reflect.Value, tag reflect.StructTag, at string) {
	switch x.Kind() { //nolint:exhaustive // The other kinds have no tags.
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(x.Type()) {
			if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" && name != "-" {
				v.values(x.FieldByIndex(f.Index), f.Tag, strings.TrimPrefix(at+"."+name, "."))
			}
		}
	case reflect.Slice:
		for i := range x.Len() {
			place := fmt.Sprintf("%s[%d]", at, i)
			v.values(x.Index(i), tag, place)
			for first := range i {
				if tag.Get("unique") == "true" && x.Index(first).Equal(x.Index(i)) {
					v.addf(place, "duplicate value %v, the first is entry %d", x.Index(i), first)
				}
			}
		}
	case reflect.String:
		v.text(x, tag, at)
	case reflect.Int, reflect.Int64, reflect.Float64:
		low, high, _ := strings.Cut(tag.Get("range"), "-")
		if text := fmt.Sprint(x.Interface()); !within(x, text, low, high) {
			v.addf(at, "%s is not between %s and %s", text, low, high)
		}
	}
}

// text checks a text. Unless it is an entry of a list, an empty one is not set.
func (v *validator) text(x reflect.Value, tag reflect.StructTag, at string) {
	words, isEnum := tag.Lookup("enum")
	allowed := strings.Split(words, ",")
	check, hasCheck := reflect.TypeAssert[interface{ Check() error }](x)
	switch {
	case x.Len() == 0 && !strings.HasSuffix(at, "]"):
		if tag.Get("required") == "true" {
			v.addf(at, "is missing")
		}
	case isEnum && !slices.Contains(allowed, x.String()):
		supported := slices.DeleteFunc(allowed, func(word string) bool { return word == "" })
		v.addf(at, "unsupported value %q: supported values are %s", x.String(), strings.Join(supported, ", "))
	case hasCheck:
		v.add(at, check.Check())
	}
}

// within reports whether a number or a duration is in a range.
func within(x reflect.Value, text, low, high string) bool {
	if x.Type() == reflect.TypeFor[time.Duration]() {
		return between(text, low, high, time.ParseDuration)
	}
	return between(text, low, high, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

func between[T cmp.Ordered](text, low, high string, parse func(string) (T, error)) bool {
	value, err := parse(text)
	lowest, errLow := parse(low)
	highest, errHigh := parse(high)
	return errors.Join(err, errLow, errHigh) == nil && lowest <= value && value <= highest
}
