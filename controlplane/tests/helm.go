// Renders a Helm chart as `helm template` does, with the few functions that Weir's chart uses.
// Standard input: {"templates": {"name": "text"}, "values": {...}, "release": "name"}; output: {"name": "rendered"}.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

type chart struct {
	Templates map[string]string      `json:"templates"`
	Values    map[string]interface{} `json:"values"`
	Release   string                 `json:"release"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func indent(width int, text string) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", width))
}

func main() {
	var given chart
	must(json.NewDecoder(os.Stdin).Decode(&given))
	root := template.New("chart").Option("missingkey=error")
	root.Funcs(template.FuncMap{
		"include": func(name string, data interface{}) (string, error) {
			var out bytes.Buffer
			err := root.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		// JSON is YAML.
		"toYaml":    func(value interface{}) (string, error) { out, err := json.Marshal(value); return string(out), err },
		"nindent":   func(width int, text string) string { return "\n" + strings.Repeat(" ", width) + indent(width, text) },
		"quote":     func(value interface{}) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"splitList": func(separator, text string) []string { return strings.Split(text, separator) },
	})
	for name, text := range given.Templates {
		_, err := root.New(name).Parse(text)
		must(err)
	}
	data := map[string]interface{}{
		"Values": given.Values, "Release": map[string]string{"Name": given.Release, "Namespace": "default"},
	}
	rendered := map[string]string{}
	for name := range given.Templates {
		if strings.HasPrefix(name, "_") {
			continue
		}
		var out bytes.Buffer
		must(root.ExecuteTemplate(&out, name, data))
		rendered[name] = out.String()
	}
	must(json.NewEncoder(os.Stdout).Encode(rendered))
}
