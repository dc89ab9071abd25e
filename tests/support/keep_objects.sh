#!/bin/sh
# keep_objects.sh FOLDER COMPILER ...: run the compiler, unless FOLDER has its output from before.
# Every library that a test builds has the same runtime, which takes 2 s to compile, and every
# served folder the same extension. Nothing is optimized, which halves that, unless warnings are
# errors: some need what the optimizer finds out.
folder=$1
shift
case " $* " in
*" -Werror "*) ;;
*) set -- "$@" -O0 ;;
esac

# All that the output depends on: the compiler, its options, and the inputs with their headers.
# Reading whole folders of headers is quicker than preprocessing, which only a dependency file needs.
options=
inputs=
headers=
target=
preprocess=
previous=
for argument; do
    case $previous:$argument in
    -o:*) target=$argument ;;
    :*) ;; # the compiler
    # Files that a linker finds by itself are not known here.
    *:-L* | *:-Wl,*/* | *:@* | *:*" "*) inputs= && break ;;
    -I:* | -isystem:*) headers="$headers $argument" ;;
    *:-I?*) headers="$headers ${argument#-I}" ;;
    *:-M* | *:-include*) preprocess=yes ;;
    *:-*) ;;
    *)
        if [ -f "$argument" ]; then
            inputs="$inputs $argument"
            case $argument in
            */*) headers="$headers ${argument%/*}" ;;
            *) headers="$headers ." ;;
            esac
        fi
        ;;
    esac
    [ "$argument" = "$target" ] || options="$options $argument"
    previous=$argument
done
if [ -z "$inputs" ] || [ -z "$target" ]; then
    exec "$@"
fi

if [ "$preprocess" ]; then
    "$@" -E 2>/dev/null || exec "$@"
    key=$( (echo "$options" && cat "$target") | sha256sum)
else
    own=
    for place in $headers; do
        case $place in
        */torch/include | /usr/*) ;;
        *) own="$own $place" ;;
        esac
    done
    # shellcheck disable=SC2086  # several files and folders
    key=$( (echo "$options" && cat $inputs &&
        find $own -regex '.*\.\(h\|hpp\|inc\)' -exec cat {} + 2>/dev/null) | sha256sum)
fi
kept=$folder/${key%% *}
if [ -e "$kept" ]; then
    # As linkers do: a process may have the old one loaded.
    [ ! -f "$target" ] || rm "$target"
    exec cp "$kept" "$target"
fi
said=$("$@" 2>&1)
status=$?
# What the compiler says must be said each time, so such an output is not kept.
if [ $status != 0 ] || [ -n "$said" ]; then
    echo "$said" >&2
    exit $status
fi
mkdir -p "$folder"
cp "$target" "$kept.$$" && mv "$kept.$$" "$kept"
